"""Verdict: whether a prefix cache pays for a load, and the number that decides it.

Questions in this order; the first answer that is no decides::

    are prompts long enough that a hit could be noticed
    do they repeat what came before
    do hits spare a part of the time that serving takes
    does a request save enough to be noticed
    does what is held save what its memory costs
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from prefold.advisor.words import ms_text
from prefold.advisor.worth import GIB, MemoryPrice, Reuse, ratio


class Reason(Enum):
    """What decides."""

    PAYS = "pays"
    NO_REQUESTS = "no_requests"
    SHORT_PROMPTS = "short_prompts"
    NEVER_REPEATED = "never_repeated"
    DECODE_BOUND = "decode_bound"
    FEW_HITS = "few_hits"
    SHORT_HITS = "short_hits"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Below which a cache is taken not to pay.

    Attributes:
        repetition: Prompt tokens seen before, as a share of all.
        saved_share: Time that hits spare, as a share of what serving takes without them.
        saved_ms: Prefill spared a request, on average.
        prefill_share: Of the serving time; below it decoding is to blame.
        price: Of memory.
    """

    repetition: float = 0.05
    saved_share: float = 0.05
    saved_ms: float = 10.0
    prefill_share: float = 0.2
    price: MemoryPrice = field(default_factory=MemoryPrice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was asked of a server, and what a cache spared it.

    Attributes:
        num_repeated_tokens: Prompt tokens that had been computed before, cached or not.
        num_hit_tokens: Of those, the ones that were cached.
        median_prompt_tokens: Of all requests.
        median_prefill_ms: Of a prompt of that length that hits nothing.
        prefill_ms: Of all prompts, if nothing hit.
        decode_ms: Of all replies; 0 where their lengths are not known.
        saved_ms: Of ``prefill_ms``, what hits spared.
        span_s: From the first request to the last; None where nobody knows.
        held_bytes: On average over that time; over the requests where it is not known.
    """

    num_requests: int
    num_prompt_tokens: int
    num_repeated_tokens: int
    num_hit_tokens: int
    median_prompt_tokens: float
    median_prefill_ms: float
    prefill_ms: float
    decode_ms: float
    saved_ms: float
    span_s: float | None
    held_bytes: float

    @property
    def repetition_rate(self) -> float:
        return ratio(self.num_repeated_tokens, self.num_prompt_tokens)

    @property
    def hit_rate(self) -> float:
        return ratio(self.num_hit_tokens, self.num_prompt_tokens)

    @property
    def prefill_share(self) -> float:
        """Of the time that serving takes without a cache."""
        return ratio(self.prefill_ms, self.prefill_ms + self.decode_ms)

    @property
    def saved_share(self) -> float:
        """Of the time that serving takes without a cache."""
        return ratio(self.saved_ms, self.prefill_ms + self.decode_ms)

    @property
    def saved_ms_per_request(self) -> float:
        return ratio(self.saved_ms, self.num_requests)

    @property
    def reuse(self) -> Reuse | None:
        """The mean request as a reuse of all that is held; None without a time span."""
        if not self.span_s:
            return None
        return Reuse(
            saved_ms=self.saved_ms_per_request,
            held_bytes=self.held_bytes,
            per_s=self.num_requests / self.span_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether it pays.

    Attributes:
        reason: What decides.
        sentence: The same for people, with its numbers.
    """

    reason: Reason
    sentence: str

    @property
    def pays(self) -> bool:
        return self.reason is Reason.PAYS


def judge(load: Load, thresholds: Thresholds | None = None, *, given: str = "") -> Verdict:
    """Return the verdict on a load.

    Args:
        load: What was asked, and spared.
        thresholds: From when it pays.
        given: What the figures are under, such as "with a cache of 4.0 GiB".
    """
    limits = thresholds or Thresholds()
    where = f" {given}" if given else ""
    for find in (_length, _repetition, _time, _memory):
        found = find(load, limits)
        if found is not None:
            reason, why = found
            return Verdict(reason=reason, sentence=f"It does not pay{where}: {why}.")
    return Verdict(reason=Reason.PAYS, sentence=f"It pays{where}: {_gain(load, limits)}.")


#: What decides, and why in words.
Finding: TypeAlias = tuple[Reason, str]


def _length(load: Load, limits: Thresholds) -> Finding | None:
    if load.num_requests == 0:
        return Reason.NO_REQUESTS, "there were no requests"
    if load.median_prefill_ms >= limits.saved_ms:
        return None
    why = (
        f"prompts are short; the median one has {load.median_prompt_tokens:,.0f} tokens, "
        f"whose prefill takes {ms_text(load.median_prefill_ms)}, and below "
        f"{ms_text(limits.saved_ms)} a hit is hardly noticed"
    )
    return Reason.SHORT_PROMPTS, why


def _repetition(load: Load, limits: Thresholds) -> Finding | None:
    if load.repetition_rate >= limits.repetition:
        return None
    why = (
        f"prompts do not repeat; {load.repetition_rate:.1%} of {load.num_prompt_tokens:,} "
        f"prompt tokens were seen before, and {limits.repetition:.0%} should be"
    )
    return Reason.NEVER_REPEATED, why


def _time(load: Load, limits: Thresholds) -> Finding | None:
    if load.saved_share < limits.saved_share:
        if load.prefill_share < limits.prefill_share:
            why = (
                f"decoding takes the time; prefill is {load.prefill_share:.1%} of it, so "
                f"hits of {load.hit_rate:.1%} of the prompt tokens spare "
                f"{load.saved_share:.1%} in all, and {limits.saved_share:.0%} should be "
                "spared"
            )
            return Reason.DECODE_BOUND, why
        why = (
            f"{load.repetition_rate:.1%} of the prompt tokens were seen before, but only "
            f"{load.hit_rate:.1%} were still cached; that spares {load.saved_share:.1%} of "
            f"the serving time, and {limits.saved_share:.0%} should be spared"
        )
        return Reason.FEW_HITS, why
    if load.saved_ms_per_request < limits.saved_ms:
        mean = ratio(load.num_hit_tokens, load.num_requests)
        why = (
            f"hits are short; {mean:,.0f} tokens a request save "
            f"{ms_text(load.saved_ms_per_request)}, and below {ms_text(limits.saved_ms)} "
            "that is hardly noticed"
        )
        return Reason.SHORT_HITS, why
    return None


def _memory(load: Load, limits: Thresholds) -> Finding | None:
    reuse, price = load.reuse, limits.price
    if reuse is None or reuse.pays(price):
        return None
    why = (
        f"too much is held for it; on average {reuse.held_bytes / GIB:,.1f} GiB, of which "
        f"each saves {ms_text(reuse.saved_ms_per_gib_s)} a second and should save "
        f"{ms_text(price.ms_per_gib_s)}; it would pay from "
        f"{reuse.break_even_per_s(price):,.2f} requests a second on, and there are "
        f"{reuse.per_s:,.2f}"
    )
    return Reason.MEMORY, why


def _gain(load: Load, limits: Thresholds) -> str:
    reuse, price = load.reuse, limits.price
    text = (
        f"hits spare {load.hit_rate:.1%} of the prompt tokens, "
        f"{ms_text(load.saved_ms_per_request)} a request and {load.saved_share:.1%} of the "
        "serving time"
    )
    if reuse is None:
        text += "; without time stamps nobody knows what the memory held costs"
    else:
        text += (
            f"; each GiB held saves {ms_text(reuse.saved_ms_per_gib_s)} a second and has "
            f"to save {ms_text(price.ms_per_gib_s)}, so it pays from "
            f"{reuse.break_even_per_s(price):,.3g} requests a second on, and there are "
            f"{reuse.per_s:,.3g}"
        )
    return text
