"""Use start: what is known of a request's use of the cache while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the tokens do not tell where a trace is replayed: a position is a block there.

    Attributes:
        num_prompt_tokens: Of the request as it was.
        num_reply_tokens: Tokens that it produced.
        tokens_per_position: Tokens that one position stands for.
    """

    num_prompt_tokens: int
    num_reply_tokens: int
    tokens_per_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revived:
    """Positions that had been cached and are computed again.

    Attributes:
        begin: The first one.
        end: The one after the last.
        num_forks: As of the run that was lost, this request included.
        gap_s: Since that was used last.
    """

    begin: int
    end: int
    num_forks: int
    gap_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UseStart:
    """What is known of a request's use of the cache when it begins.

    Attributes:
        turn: As in ``Request``, as are ``is_fork`` and ``gap_s``.
        num_prompt_positions: Positions of its prompt.
        num_known_positions: Of those, leading ones that are cached or were evicted.
        revived: Of the latter, those that several requests began with.
    """

    turn: int
    is_fork: bool
    gap_s: float | None
    num_prompt_positions: int
    num_known_positions: int
    revived: tuple[Revived, ...]
