"""Protocol of worth: what cached prefixes save, against what they hold."""

from __future__ import annotations

from typing import Literal

from prefold.server.protocol import ReplyModel


class LengthFigures(ReplyModel):
    """Hit lengths in tokens, of all requests; to within an eighth."""

    p10: int
    p50: int
    p90: int
    p99: int


class WorthFigures(ReplyModel):
    """Sums since the start; times are null before the cost of prefill was measured."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    repetition_rate: float
    """Prompt tokens that were cached, or had been and were evicted, over all."""
    hit_rate: float
    """Prompt tokens that were cached, over all."""
    hit_length: LengthFigures
    saved_ms: float | None
    """Prefill that hits spared."""
    held_byte_seconds: float | None
    """Bytes held, summed over the seconds; what several use is split equally."""
    eviction_ms: float | None
    """Prefill of what had been cached and was evicted."""
    saved_ms_per_s: float | None
    saved_ms_per_gib_s: float | None
    """Prefill spared a second by each GiB held."""
    break_even_per_s: float | None
    """Requests a second from which what is held pays, with hits as they are."""


class TenantWorth(WorthFigures):
    """The figures of one tenant."""

    tenant: str


class PrefixWorthFigures(ReplyModel):
    """A run of cached tokens that requests have in common; memory is its own blocks'."""

    domain: str
    begin_token: int
    end_token: int
    requests: int
    """That began by matching it."""
    saved_ms: float | None
    held_byte_seconds: float | None
    reuses_per_s: float
    break_even_per_s: float | None
    pays: bool | None
    """Whether it is reused more often than that."""


class WorthReply(ReplyModel):
    """What caching is worth here."""

    object: Literal["cache.worth"] = "cache.worth"
    since: int
    """Unix time from which on is counted."""
    total: WorthFigures
    tenants: list[TenantWorth]
    best: list[PrefixWorthFigures]
    """Of the prefixes cached now."""
    worst: list[PrefixWorthFigures]
    is_complete: bool
    """Whether all prefixes cached now were looked at."""
    machine_bytes: int
    """Memory that all of the machine's time is set against: what memory costs."""
    verdict: str
    """In a sentence, with the number that decides."""
