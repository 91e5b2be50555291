"""Prompt lint: what breaks the prefixes of logged prompts, and what it costs.

::

    scan      where does each prompt part from the one it begins most like
    pick      the place behind which most tokens agree again
    explain   what stands there in both: a clock, an id, keys in another order ...
    rewrite   all prompts, with that put right
    scan      what is hit now; the difference is what it costs

and again from the rewritten prompts, since what breaks them first hides the rest. Only what
pays when it is tried is reported, so a log in which questions simply differ has nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from prefold.advisor.advice import Prices
from prefold.advisor.break_kind import BreakKind
from prefold.advisor.breakpoints import Breakpoint, explain_difference
from prefold.advisor.prompt_log import LoggedPrompt
from prefold.advisor.prompt_pieces import CountTokens, Pieces, cut, shared_length
from prefold.advisor.prompt_scan import Parting, Place, PromptScan, scan_prompts
from prefold.advisor.rewriting import Move, OneBlank, Rewriting, SortJson, SortLines

#: What is gained must be so much of all prompt tokens.
MIN_GAIN = 0.01

MAX_BREAKERS = 10
#: Tokens that a request has to hit besides, to count as one that is helped.
_MIN_HELP = 4
_MAX_TRIES = 20
_NUM_EXPLAINED = 32
#: Characters around a place that are looked at.
_WINDOW = 2**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Something that ends prefixes.

    Attributes:
        kind: What it is.
        detail: The same in words: "the clock's seconds".
        segment: Where it stands: "message 1 (system)".
        at_token: Tokens in front of it, in the median.
        num_requests: Requests that would hit more, were it put right.
        share: The same, of all requests with text.
        saved_tokens: Prompt tokens that would be hit besides, were it put right.
        saved_ms: Their prefill.
        remedy: What to do.
        lines: Of the log: an example, and the earlier request that it begins most like.
    """

    kind: BreakKind
    detail: str
    segment: str
    at_token: int
    num_requests: int
    share: float
    saved_tokens: int
    saved_ms: float
    remedy: str
    lines: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """What was found.

    Attributes:
        breakers: In the order in which they should be put right; what one saves is
            counted with those before it put right.
        num_prompt_tokens: Of all prompts, as they are counted here.
        hit_tokens: Of the prompts as they are, if everything is kept.
        rewritten: The prompts with all of it put right.
    """

    breakers: tuple[Breaker, ...]
    num_prompt_tokens: float
    hit_tokens: float
    rewritten: Sequence[LoggedPrompt] = field(repr=False)


def lint(
    prompts: Sequence[LoggedPrompt],
    prices: Prices,
    count_tokens: CountTokens,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Lint:
    """Return what breaks these prompts, those given as token ids left out.

    Costs a scan, and one for each remedy that is tried.

    Args:
        prompts: In the order of arrival.
        prices: Of prefill.
        count_tokens: Of a text.
        on_progress: Called with the number of prompts scanned, for each scan anew.
    """
    its = [prompt for prompt in prompts if prompt.token_ids is None]
    linter = _Linter(prices, Pieces(count_tokens), on_progress)
    before = scan = linter.scan(its)
    breakers: list[Breaker] = []
    hopeless: set[Place] = set()
    for _ in range(_MAX_TRIES):
        place = _worst_place(scan, hopeless)
        if place is None or len(breakers) == MAX_BREAKERS:
            break
        found, rewriting = _diagnose(scan, place)
        after = linter.scan([rewriting.apply(prompt) for prompt in scan.prompts])
        breaker = linter.judge(scan, after, place, found, rewriting)
        if breaker is None:
            hopeless.add(place)
        else:
            breakers.append(breaker)
            scan, hopeless = after, set()
    return Lint(
        breakers=tuple(breakers),
        num_prompt_tokens=float(before.num_tokens.sum()),
        hit_tokens=float(before.hit_tokens.sum()),
        rewritten=scan.prompts,
    )


class _Linter:
    """Scans prompts, and says what a remedy is worth."""

    __slots__ = ("_on_progress", "_pieces", "_prices")

    def __init__(
        self, prices: Prices, pieces: Pieces, on_progress: Callable[[int], None]
    ) -> None:
        self._prices = prices
        self._pieces = pieces
        self._on_progress = on_progress

    def scan(self, prompts: Sequence[LoggedPrompt]) -> PromptScan:
        return scan_prompts(prompts, self._pieces, self._on_progress)

    def judge(
        self,
        before: PromptScan,
        after: PromptScan,
        place: Place,
        found: Breakpoint,
        rewriting: Rewriting,
    ) -> Breaker | None:
        """Return what was put right, or None if that gains too little."""
        gained = float(after.hit_tokens.sum() - before.hit_tokens.sum())
        if gained < MIN_GAIN * float(before.num_tokens.sum()):
            return None
        num_helped = int((after.hit_tokens - before.hit_tokens >= _MIN_HELP).sum())
        partings = before.partings[place]
        example = partings[len(partings) // 2]
        saved = self._prices.sum_ms(after.hit_tokens) - self._prices.sum_ms(
            before.hit_tokens
        )
        return Breaker(
            kind=found.kind,
            detail=found.detail,
            segment=place.label,
            at_token=found.at_token,
            num_requests=num_helped,
            share=num_helped / len(before.prompts),
            saved_tokens=round(gained),
            saved_ms=saved,
            remedy=rewriting.describe(),
            lines=(
                before.prompts[example.later].line,
                before.prompts[example.earlier].line,
            ),
        )


def _worst_place(scan: PromptScan, hopeless: set[Place]) -> Place | None:
    """Return behind which place most is lost, if that is enough to be looked at."""
    lost = {
        place: sum(parting.lost_tokens for parting in partings)
        for place, partings in scan.partings.items()
        if place not in hopeless
    }
    if not lost:
        return None
    worst = max(lost, key=lost.__getitem__)
    return worst if lost[worst] >= MIN_GAIN * float(scan.num_tokens.sum()) else None


def _diagnose(scan: PromptScan, place: Place) -> tuple[Breakpoint, Rewriting]:
    """Return what stands at a place, and what is to be done about it."""
    partings = scan.partings[place]
    step = max(len(partings) // _NUM_EXPLAINED, 1)
    sample = partings[::step]
    found = Counter[tuple[BreakKind, str]]()
    for parting in sample:
        its = _explain(scan.prompts, parting, place)
        found[its.kind, its.detail] += 1
    by_kind = Counter[BreakKind]()
    for (kind, _), count in found.items():
        by_kind[kind] += count
    kind = by_kind.most_common(1)[0][0]
    detail = next(detail for (its, detail), _ in found.most_common() if its is kind)
    tokens = float(np.median([parting.shared_tokens for parting in partings]))
    return (
        Breakpoint(kind=kind, detail=detail, at_token=round(tokens)),
        _remedy(kind, scan.prompts, sample, place),
    )


def _explain(prompts: Sequence[LoggedPrompt], parting: Parting, place: Place) -> Breakpoint:
    later = prompts[parting.later].segments
    start = sum(len(segment.text) for segment in later[: parting.segment])
    own = cut(later[parting.segment].text)[: place.index]
    begin = max(start, start + sum(map(len, own)) - _WINDOW)
    end = start + sum(map(len, own)) + _WINDOW
    ours, theirs = (
        "".join(segment.text for segment in prompts[number].segments)[begin:end]
        for number in (parting.later, parting.earlier)
    )
    return explain_difference(theirs, ours, at_token=round(parting.shared_tokens))


def _remedy(
    kind: BreakKind,
    prompts: Sequence[LoggedPrompt],
    sample: Sequence[Parting],
    place: Place,
) -> Rewriting:
    if kind is BreakKind.REORDERED_KEYS:
        return SortJson(label=place.label, sorts_lists=False)
    if kind in (BreakKind.REORDERED_LIST, BreakKind.REORDERED_TOOLS):
        return _sorting(prompts, sample, place)
    if kind is BreakKind.WHITE_SPACE:
        return OneBlank(label=place.label)
    texts = []
    for parting in sample:
        for number in (parting.earlier, parting.later):
            segments = prompts[number].segments
            own = (
                cut(segments[parting.segment].text)
                if parting.segment < len(segments)
                else []
            )
            texts += own[place.index : place.index + 1]
    # All that the pieces have in common, up to the value that changes.
    head = min(texts)[: shared_length(min(texts), max(texts))].rstrip(
        "0123456789abcdefABCDEF:.,-/_"
    )
    return Move(label=place.label, index=place.index, head=head)


def _sorting(
    prompts: Sequence[LoggedPrompt], sample: Sequence[Parting], place: Place
) -> Rewriting:
    """Return how to sort the list at a place: what lets most prompts agree further."""
    ways: tuple[Rewriting, ...] = (
        SortJson(label=place.label, sorts_lists=True),
        SortLines(label=place.label, index=place.index),
    )

    def num_agreed(way: Rewriting) -> int:
        return sum(
            shared_length(
                *(
                    "".join(it.text for it in way.apply(prompts[number]).segments)
                    for number in (parting.earlier, parting.later)
                )
            )
            for parting in sample
        )

    return max(ways, key=num_agreed)
