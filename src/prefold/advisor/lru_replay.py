"""LRU replay: what a cache of some size hits and holds on a trace, run by run.

The same as ``replay`` under ``lru``, request by request, and some fifty times as fast:
it works on the finished block tree, so a run is never cut, and a list entry stands for all
of its blocks. What it says besides is what each run hit, and how long its blocks were held.

Eviction takes the blocks of the request that was longest ago, last block first, as far as
no later request used them. They are a piece of that request's path::

    root ── A ── B ── C      request 1 used A B C, request 2 used A D: of request 1,
             `── D           C goes first, then B; A is request 2's by now

O(runs on the paths), in Python; memory is a few numbers a run and a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prefold.advisor.block_tree import BlockTree
from prefold.advisor.replay_result import check_capacity
from prefold.errors import InvariantError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Often enough for a bar, and rare enough to cost nothing.
_REQUESTS_A_REPORT = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LruReplay:
    """Hits and holdings of one capacity.

    Attributes:
        num_blocks: Of the cache; None where it never had to evict.
        hit_blocks: One entry a request.
        is_cached: Whether a request's prompt fits; one entry a request.
        run_hits: Blocks that were hit, all requests together; one entry a run.
        run_block_s: Blocks held, summed over the seconds; one entry a run.
        peak_blocks: Most blocks held at a time.
        num_evicted_blocks: Blocks that had to go.
    """

    num_blocks: int | None
    hit_blocks: Ints = field(repr=False)
    is_cached: npt.NDArray[np.bool_] = field(repr=False)
    run_hits: Ints = field(repr=False)
    run_block_s: Floats = field(repr=False)
    peak_blocks: int
    num_evicted_blocks: int

    @property
    def block_s(self) -> float:
        """Blocks held, summed over the seconds from the first request to the last."""
        return float(self.run_block_s.sum())


def replay_lru(
    tree: BlockTree,
    arrivals: Sequence[float],
    num_blocks: int | None = None,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> LruReplay:
    """Return what LRU with ``num_blocks`` makes of the requests that the tree is of.

    What is left at the end is held until the last arrival.

    Args:
        tree: Of all prompts, in the order of their arrival.
        arrivals: Of each, in seconds, never decreasing.
        num_blocks: Of the cache; None for one that holds all.
        on_progress: Called with the number of requests served, now and then.

    Raises:
        InvalidInputError: ``num_blocks`` is below 1.
    """
    if num_blocks is not None:
        check_capacity(num_blocks)
    cache = _Cache(tree, num_blocks)
    begin_at = arrivals[0] if arrivals else 0.0
    hits, is_cached = [], []
    now = 0.0
    for number, (end, arrival_s) in enumerate(zip(cache.ends, arrivals, strict=True)):
        now = arrival_s - begin_at
        hit = cache.serve(number, end, now)
        hits.append(hit or 0)
        is_cached.append(hit is not None)
        if on_progress is not None and number % _REQUESTS_A_REPORT == 0:
            on_progress(number)
    cache.close(now)
    return LruReplay(
        num_blocks=num_blocks if cache.num_evicted or not all(is_cached) else None,
        hit_blocks=np.array(hits, dtype=np.int64),
        is_cached=np.array(is_cached, dtype=np.bool_),
        run_hits=np.array(cache.run_hits, dtype=np.int64),
        run_block_s=np.array(cache.block_s, dtype=np.float64),
        peak_blocks=cache.peak,
        num_evicted_blocks=cache.num_evicted,
    )


class _Cache:
    """Which blocks of which run are cached.

    Invariants:
        - of a run its first ``kept`` blocks are cached, and ``cached`` is their sum
        - nothing is cached below a run of which something is missing
    """

    __slots__ = (
        "_capacity",
        "_depths",
        "_kept",
        "_lengths",
        "_next_to_go",
        "_oldest",
        "_parents",
        "_used_by",
        "block_s",
        "cached",
        "ends",
        "num_evicted",
        "peak",
        "run_hits",
    )

    def __init__(self, tree: BlockTree, num_blocks: int | None) -> None:
        # Lists: single entries of arrays are slow to read.
        self._parents: list[int] = tree.parents.tolist()
        self._lengths: list[int] = tree.lengths.tolist()
        self._depths: list[int] = tree.depths.tolist()
        self.ends: list[int] = tree.ends.tolist()
        num_runs = len(self._parents)
        # All fit into a cache of as many blocks as there are.
        self._capacity = tree.num_blocks if num_blocks is None else num_blocks
        self._kept = [0] * num_runs
        self._used_by = [-1] * num_runs
        self.run_hits = [0] * num_runs
        # Blocks times the seconds at which they went, less those at which they came.
        self.block_s = [0.0] * num_runs
        self.cached = self.peak = self.num_evicted = 0
        # The request whose blocks go next, and the run of its path that does.
        self._oldest = 0
        self._next_to_go = self.ends[0] if self.ends else 0

    def serve(self, number: int, end: int, now: float) -> int | None:
        """Use a path; return the blocks that it hits, or None if it is too long."""
        parents, lengths, kept = self._parents, self._lengths, self._kept
        used_by, run_hits = self._used_by, self.run_hits
        hit = self._depths[end] + lengths[end]
        if hit > self._capacity:
            return None
        run, before = end, self.cached
        while run:
            length, have = lengths[run], kept[run]
            run_hits[run] += have
            if have < length:
                # From the end to the root, so the first gap of the path is seen last.
                hit = self._depths[run] + have
                missing = length - have
                self.block_s[run] -= missing * now
                self.cached += missing
                kept[run] = length
            used_by[run] = number
            run = parents[run]
        if self.cached > before:
            self._evict(now)
            self.peak = max(self.peak, self.cached)
        return hit

    def _evict(self, now: float) -> None:
        excess = self.cached - self._capacity
        while excess > 0:
            run = self._next_to_go
            if self._used_by[run] != self._oldest:
                # The rest of its path is a later one's, or it never was cached.
                self._oldest += 1
                self._next_to_go = self.ends[self._oldest]
                continue
            taken = min(self._kept[run], excess)
            self._kept[run] -= taken
            self.block_s[run] += taken * now
            self.num_evicted += taken
            self.cached -= taken
            excess -= taken
            if self._kept[run] == 0:
                self._used_by[run] = -1
                self._next_to_go = self._parents[run]

    def close(self, now: float) -> None:
        """Count what is left as held until now."""
        for run, have in enumerate(self._kept):
            self.block_s[run] += have * now

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless what is cached adds up. O(runs)."""
        if self.cached != sum(self._kept) or self.cached > self._capacity:
            raise InvariantError("the cached blocks are not those of the runs")
        for run, parent in enumerate(self._parents):
            if self._kept[run] and self._kept[parent] < self._lengths[parent]:
                raise InvariantError("a run is cached whose parent is not")
