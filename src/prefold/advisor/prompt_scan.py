"""Prompt scan: what prompts share when a cache keeps everything, and where they part.

One pass in the order of arrival. A prompt hits what it has in common with the earlier one
that it begins most like; where they part, the rest may agree again, and would be hit, too,
if what lies between stood elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from prefold.advisor.prompt_log import LoggedPrompt
from prefold.advisor.prompt_pieces import Pieces
from prefold.advisor.prompt_tree import PromptTree, common_length

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a prompt parts from an earlier one: a piece of a segment."""

    label: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Two prompts that part.

    Attributes:
        earlier: The place of the one in the order of arrival.
        later: That of the other.
        segment: Number of the segment of the later one.
        shared_tokens: Before the piece.
        lost_tokens: After the piece, or the segment, that agree again.
    """

    earlier: int
    later: int
    segment: int
    shared_tokens: float
    lost_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptScan:
    """What a pass found.

    Attributes:
        prompts: Those of the pass.
        num_tokens: Of each.
        hit_tokens: Of each, those it shares with an earlier one; at most all but one.
        partings: By place; only those that have something in common again.
    """

    prompts: Sequence[LoggedPrompt] = field(repr=False)
    num_tokens: Floats = field(repr=False)
    hit_tokens: Floats = field(repr=False)
    partings: dict[Place, list[Parting]] = field(repr=False)


def scan_prompts(
    prompts: Sequence[LoggedPrompt],
    pieces: Pieces,
    on_progress: Callable[[int], None] = lambda _: None,
) -> PromptScan:
    """Compare each prompt with those before it. O(pieces of all), mostly in numpy.

    Args:
        prompts: As texts, in the order of arrival.
        pieces: Knows the pieces of all; may be used for several scans.
        on_progress: Called with the number of prompts done, now and then.
    """
    tree, partners = PromptTree(), _Partners()
    num_tokens, hit_tokens = np.zeros(len(prompts)), np.zeros(len(prompts))
    partings: defaultdict[Place, list[Parting]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        row = pieces.of(prompt)
        partners.rows.append(row)
        agreement = tree.insert(row)
        tokens = pieces.tokens_of(row)
        shared = float(tokens[: agreement.length].sum())
        num_tokens[number] = total = float(tokens.sum())
        if agreement.earlier is not None:
            nearest = partners.rows[agreement.earlier]
            shared += pieces.shared_tokens(row, nearest, agreement.length)
            earlier = partners.find(number, agreement.earlier, agreement.length)
            theirs = partners.rows[earlier]
            found = _parting(prompt, pieces, row, theirs, agreement.length, tokens)
            if found is not None:
                place, segment, lost = found
                partings[place].append(
                    Parting(
                        earlier=earlier,
                        later=number,
                        segment=segment,
                        shared_tokens=shared,
                        lost_tokens=lost,
                    )
                )
        # One token is always computed.
        hit_tokens[number] = min(shared, max(total - 1, 0))
        if number % _PROMPTS_A_REPORT == 0:
            on_progress(number)
    return PromptScan(
        prompts=prompts,
        num_tokens=num_tokens,
        hit_tokens=hit_tokens,
        partings=dict(partings),
    )


class _Partners:
    """Finds an earlier prompt that parts from one where it does, and goes on alike.

    The nearest one is the latest that parts there. Where several kinds of prompts begin
    with a clock, that may be one of another kind.
    """

    __slots__ = ("_by_next", "rows")

    def __init__(self) -> None:
        self.rows: list[Ints] = []
        # The latest prompt by its first piece, where it parted, and the piece after that.
        self._by_next: dict[tuple[int, int, int], int] = {}

    def find(self, number: int, nearest: int, at: int) -> int:
        """Return a partner of a prompt that parts at ``at``, and remember both."""
        row = self.rows[number]
        self._remember(nearest, at)
        key = self._key(row, at)
        found = None if key is None else self._by_next.get(key)
        self._remember(number, at)
        if found is None:
            return nearest
        other = self.rows[found]
        is_same_start = other[at] != row[at] and bool((other[:at] == row[:at]).all())
        return found if is_same_start else nearest

    def _remember(self, number: int, at: int) -> None:
        key = self._key(self.rows[number], at)
        if key is not None:
            self._by_next[key] = number

    def _key(self, row: Ints, at: int) -> tuple[int, int, int] | None:
        return (int(row[0]), at, int(row[at + 1])) if at + 1 < len(row) else None


_PROMPTS_A_REPORT = 256


def _parting(
    prompt: LoggedPrompt,
    pieces: Pieces,
    ours: Ints,
    theirs: Ints,
    at: int,
    tokens: Floats,
) -> tuple[Place, int, float] | None:
    """Return where they part, in which segment, and what agrees after that."""
    if at == 0:
        # Another model or tenant.
        return None
    lengths = [len(pieces.of_segment(segment)) for segment in prompt.segments]
    ends = list(accumulate(lengths, initial=1))
    segment = next((n for n, end in enumerate(ends[1:]) if at < end), None)
    if segment is None:
        return None
    same = common_length(ours[at + 1 :], theirs[at + 1 :])
    lost = float(tokens[at + 1 : at + 1 + same].sum())
    # What was reordered ends with its segment, at the same place if it is as long.
    end = ends[segment + 1]
    same = common_length(ours[end:], theirs[end:])
    lost = max(lost, float(tokens[end : end + same].sum()))
    if lost == 0:
        return None
    place = Place(label=prompt.segments[segment].label, index=at - ends[segment])
    return place, segment, lost
