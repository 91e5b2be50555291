"""Miss curve: what caches of several sizes would hit, from one pass and a small sample.

A cache that evicts what was used longest ago keeps the top of a *stack*: of all blocks in
the order of their last use. A block hits in a cache of C blocks if it is among the top C
(Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", 1970).
A prompt uses its blocks from the last to the first::

    stack    root, .., last block of the latest prompt | what is left of the one before | ..
             top                                                              least recent

so that a block always stands above those that continue it. Hence the blocks of a prompt
that hit are its first ones at every size, as they must be in a prefix cache, and each
block has a distance of its own: blocks can be sampled one by one.

The sample is SHARDS' (Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC construction
with SHARDS", FAST 2015): the blocks whose mark is below a limit. A distance among them,
over the rate, is one among all. Three things of that paper are kept: the set has a fixed
size, and the limit is lowered as it fills; each use counts as many as it stands for; and
what the sample lacks of the uses that there were (SHARDS-adj) are uses of few hot blocks,
which hit at every size. One is added: nothing is remembered beyond the largest size, so
that the rate does not fall for ever while new prompts come in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from prefold.advisor.path_marks import PathMarks
from prefold.errors import InvalidInputError, InvariantError

#: Blocks in the sample, at most: about 4 MiB.
BUDGET = 16_384

#: Of a full sample so much stays, so that lowering the limit is rarely done.
_KEPT = 15 / 16

#: The stack may be longer than the largest size by one part in so many before it is cut.
_SLACK = 16

_NUM_MARKS = 2**64

#: Where a run begins in the stack, counted from its least recent block, and its length.
_Run = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """What a cache of one size would have hit.

    Attributes:
        num_blocks: Its size.
        hit_blocks: Blocks looked up that hit.
        hit_depths: Sum over those of how many blocks were before each in its prompt.
    """

    num_blocks: int
    hit_blocks: float
    hit_depths: float


class MissCurve:
    """The sampled stack, and what hit at each size. One thread.

    Equal calls give equal figures. Memory: ``budget`` entries.

    Attributes:
        num_queries: Requests that looked something up.
        num_asked: Blocks that they looked up.
        asked_depths: Sum over those of how many blocks were before each in its prompt.

    Invariants:
        - every entry's mark is below the limit, and there are at most ``budget``
        - stamps increase from the least recent entry to the top
    """

    __slots__ = (
        "_asked",
        "_budget",
        "_capacities",
        "_hits",
        "_last_stamp",
        "_limit",
        "_marks",
        "_seen",
        "_stamp_of",
        "_stamps",
        "asked_depths",
        "num_asked",
        "num_queries",
    )

    def __init__(
        self, capacities: Sequence[int], *, budget: int = BUDGET, rate: float = 1.0
    ) -> None:
        """Begin with nothing seen.

        Args:
            capacities: Sizes in blocks, ascending.
            budget: Entries of the sample, at most.
            rate: Share of the blocks that is sampled to begin with.

        Raises:
            InvalidInputError: No sizes, or not ascending from 1; a budget below 1; or a
                rate that is no share.
        """
        if not capacities or capacities[0] < 1 or sorted(capacities) != list(capacities):
            raise InvalidInputError(
                f"capacities must ascend from at least 1 block, got {list(capacities)}"
            )
        if budget < 1:
            raise InvalidInputError(f"the budget must be at least 1 block, got {budget}")
        if not 0 < rate <= 1:
            raise InvalidInputError(f"the rate must be above 0 and at most 1, got {rate}")
        self._capacities = tuple(capacities)
        self._budget = budget
        # A block is sampled if its mark is below this.
        self._limit = max(int(rate * _NUM_MARKS), 1)
        # The stack, least recent first: when each entry was used last, and its mark.
        self._stamps: list[int] = []
        self._marks: list[int] = []
        self._stamp_of: dict[int, int] = {}
        self._last_stamp = 0
        self.num_queries = 0
        self.num_asked = 0
        self.asked_depths = 0
        # Blocks and sums of depths, a row for each size: what was asked for by requests
        # that fit, what the sample saw of that, and what it saw hit.
        self._asked = np.zeros((len(capacities), 2))
        self._seen = np.zeros((len(capacities), 2))
        self._hits = np.zeros((len(capacities), 2))

    @property
    def rate(self) -> float:
        """Share of the blocks that is sampled now."""
        return self._limit / _NUM_MARKS

    @property
    def num_sampled(self) -> int:
        """Blocks in the sample."""
        return len(self._stamps)

    def note(self, marks: PathMarks, *, num_asked: int, num_kept: int) -> None:
        """Note that a request looked a path up, and used it.

        O(sampled blocks of the path), and O(blocks) outside Python. Amortised over the
        requests that fill the sample, O(1) more for each of these blocks.

        Args:
            marks: Of the path's blocks, from the first.
            num_asked: Leading blocks that were looked up.
            num_kept: Leading blocks that are cached, and just used, afterwards.

        Raises:
            InvalidInputError: More blocks asked for or kept than there are marks.
        """
        _check_length(num_asked, marks)
        _check_length(num_kept, marks)
        places, sampled = self._sample(marks)
        runs = self._find(sampled)
        asked_depths = num_asked * (num_asked - 1) // 2
        self.num_queries += 1
        self.num_asked += num_asked
        self.asked_depths += asked_depths
        # A path that does not fit would not have been served.
        first = bisect_left(self._capacities, max(num_asked, num_kept))
        self._asked[first:] += (num_asked, asked_depths)
        num_seen = int(np.searchsorted(places, num_asked))
        if num_seen:
            self._count(runs, [0, *accumulate(places[:num_seen].tolist())], first)
        self._use(places, sampled, runs, num_kept)

    def note_use(self, marks: PathMarks, *, num_kept: int) -> None:
        """Note that a request used a path that it did not look up: as ``note``."""
        _check_length(num_kept, marks)
        places, sampled = self._sample(marks)
        self._use(places, sampled, self._find(sampled), num_kept)

    def counts(self) -> tuple[CurvePoint, ...]:
        """Return what each size would have hit, by what the sample has seen.

        Right on average; differences between sizes are better than the numbers themselves,
        in which a block that everybody uses counts too often or not at all.
        """
        return self._points(self._hits)

    def points(self) -> tuple[CurvePoint, ...]:
        """Return what each size would have hit of all blocks looked up so far.

        What the sample has too few or too many of, compared with the uses that there were,
        are taken to be uses of the hottest blocks, which hit at every size.
        """
        lacking = self._asked - self._seen
        return self._points(np.clip(self._hits + lacking, 0.0, self._asked))

    def _points(self, hits: npt.NDArray[np.float64]) -> tuple[CurvePoint, ...]:
        return tuple(
            CurvePoint(num_blocks=num_blocks, hit_blocks=blocks, hit_depths=depths)
            for num_blocks, (blocks, depths) in zip(
                self._capacities, hits.tolist(), strict=True
            )
        )

    # -- inside --------------------------------------------------------------------

    def _find(self, sampled: list[int]) -> list[_Run]:
        """Return where the blocks of a path stand that are in the stack.

        Those are its first ones, in runs that were used together before.
        """
        runs: list[_Run] = []
        known, done = self._marks, 0
        while done < len(sampled):
            stamp = self._stamp_of.get(sampled[done])
            if stamp is None:
                break
            top = bisect_left(self._stamps, stamp)
            length = min(len(sampled) - done, top + 1)
            ours, theirs = sampled[done : done + length], known[top - length + 1 : top + 1]
            theirs.reverse()
            if ours != theirs:
                pairs = zip(ours, theirs, strict=True)
                length = next(i for i, (our, their) in enumerate(pairs) if our != their)
            runs.append((top, length))
            done += length
        return runs

    def _count(self, runs: list[_Run], depths: list[int], first: int) -> None:
        """Count a path's hits at every size.

        Args:
            runs: Where its blocks stand.
            depths: Sums of the places of its first sampled blocks that were asked for.
            first: The smallest size that it fits into.
        """
        weight = _NUM_MARKS / self._limit
        num_seen = len(depths) - 1
        self._seen[first:] += (weight * num_seen, weight * depths[-1])
        for index in range(first, len(self._capacities)):
            size = self._size_of(self._capacities[index])
            num_hits = 0
            for top, length in runs:
                distance = len(self._stamps) - top
                num_hits += max(min(size - distance + 1, length), 0)
            num_hits = min(num_hits, num_seen)
            self._hits[index] += (weight * num_hits, weight * depths[num_hits])

    def _sample(self, marks: PathMarks) -> tuple[npt.NDArray[np.intp], list[int]]:
        """Return which blocks of a path are sampled: their places and their marks."""
        places = np.flatnonzero(marks <= np.uint64(self._limit - 1))
        return places, marks[places].tolist()

    def _use(
        self,
        places: npt.NDArray[np.intp],
        sampled: list[int],
        runs: list[_Run],
        num_kept: int,
    ) -> None:
        """Put the kept part of a path on top of the stack, its first block uppermost."""
        num_used = int(np.searchsorted(places, num_kept))
        moved, done = [], 0
        for top, length in runs:
            moved.append((top, min(length, num_used - done)))
            done += moved[-1][1]
        # What is deeper in the path stands lower in the stack, so no place moves under it.
        for top, length in moved:
            del self._stamps[top - length + 1 : top + 1]
            del self._marks[top - length + 1 : top + 1]
        first = self._last_stamp + 1
        self._last_stamp += num_used
        stamps = range(first, self._last_stamp + 1)
        used = sampled[:num_used]
        used.reverse()
        self._marks.extend(used)
        self._stamps.extend(stamps)
        self._stamp_of.update(zip(used, stamps, strict=True))
        self._forget()

    def _forget(self) -> None:
        """Drop what no size would have any more; then, if need be, lower the limit."""
        size = self._size_of(self._capacities[-1])
        num_over = len(self._stamps) - size
        if num_over > size // _SLACK:
            for mark in self._marks[:num_over]:
                # Two blocks could have one mark, once in a few thousand years.
                self._stamp_of.pop(mark, None)
            del self._stamps[:num_over]
            del self._marks[:num_over]
        if len(self._stamps) > self._budget:
            self._lower(int(self._budget * _KEPT))

    def _size_of(self, capacity: int) -> int:
        """Return how many sampled blocks a cache of ``capacity`` would have.

        Of the blocks above a sampled one, which is there for sure, ``rate`` are sampled.
        """
        return 1 + (capacity - 1) * self._limit // _NUM_MARKS

    def _lower(self, num_kept: int) -> None:
        """Lower the limit until so many entries are left. O(entries)."""
        marks = np.array(self._marks, dtype=np.uint64)
        # The lowest mark that has to go is the first that is not below the new limit.
        self._limit = max(int(np.partition(marks, num_kept)[num_kept]), 1)
        kept = np.flatnonzero(marks < np.uint64(self._limit)).tolist()
        self._marks = [self._marks[place] for place in kept]
        self._stamps = [self._stamps[place] for place in kept]
        self._stamp_of = dict(zip(self._marks, self._stamps, strict=True))

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the stack is no stack or the sample too large."""
        if len(self._stamps) > self._budget:
            raise InvariantError("the sample has more entries than it may have")
        if any(mark >= self._limit for mark in self._marks):
            raise InvariantError("a block is in the sample that is not sampled")
        if any(a >= b for a, b in zip(self._stamps, self._stamps[1:], strict=False)):
            raise InvariantError("the stack is not in the order of use")
        if self._stamp_of != dict(zip(self._marks, self._stamps, strict=True)):
            raise InvariantError("the stack and its index disagree")
        if len(self._stamp_of) != len(self._stamps):
            raise InvariantError("a block stands in the stack twice")
        if (np.diff(self._hits, axis=0) < 0).any():
            raise InvariantError("a larger cache hits less than a smaller one")


def _check_length(num_blocks: int, marks: PathMarks) -> None:
    if not 0 <= num_blocks <= len(marks):
        raise InvalidInputError(
            f"{num_blocks} blocks cannot be the first of a path of {len(marks)}"
        )
