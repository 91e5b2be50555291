"""Clairvoyant: the most that any eviction policy could have hit on a trace.

Evicts what is used again furthest in the future (L. A. Belady, "A study of replacement
algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966), which no
policy can know and none can beat: to keep a block until its next use is to take a place
for an interval of time, each interval kept is one hit, and of intervals that compete for
a place the one that ends first leaves the most room for others.

It stays prefix-closed by itself, as a prefix cache must: whoever uses a block uses all
blocks before it, so a block's next use is never later than that of a block after it. Of
equal ones the deeper goes first, so what goes is always the tail of a leaf.

The rules are ``replay``'s: one request at a time, and a prompt of more blocks than there
are is served uncached, hits nothing, and counts as no use. There are two bounds. The
usual one lets a prompt's own blocks go while it is served, as if it were computed beside
the cache; nothing beats that. A cache that computes prompts in its own blocks must hold
all of one at once, for which others have to go: that bound is lower, mostly where the
cache holds few prompts, and is as exact for such a cache.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from prefold.advisor.block_tree import BlockTree, Ints, grow_block_tree
from prefold.advisor.replay_result import ReplayResult, check_capacity, summarize
from prefold.advisor.trace import Trace
from prefold.eviction.cost import CostFit

#: Its name in tables, beside those of the policies.
CLAIRVOYANT = "clairvoyant"


def replay_clairvoyant(
    trace: Trace,
    num_blocks: int,
    cost: CostFit,
    *,
    tree: BlockTree | None = None,
    holds_prompts: bool = False,
) -> ReplayResult:
    """Return what a cache of ``num_blocks`` would hit that knew the future.

    Counted in blocks, so exact for the token hit rate. O(runs of all prompts) with numpy,
    and O(log n) for each run evicted.

    Args:
        trace: Its requests in the order in which they are served.
        num_blocks: Blocks of the cache.
        cost: What prefill takes.
        tree: The trace's block tree, where the caller has it already.
        holds_prompts: Whether all of a prompt has to be in the cache while it is served.

    Raises:
        InvalidInputError: ``num_blocks`` is below 1.
    """
    check_capacity(num_blocks)
    if tree is None:
        tree = grow_block_tree(request.block_ids() for request in trace.requests)
    paths = tree.paths()
    num_needed = (tree.depths + tree.lengths)[tree.ends]
    is_served: list[bool] = (num_needed <= num_blocks).tolist()
    next_uses = _next_uses(paths, is_served, len(tree.lengths))
    cache = _Cache(tree, num_blocks, holds_prompts=holds_prompts)
    hit_blocks = [
        cache.serve(path, uses) if served else 0
        for path, uses, served in zip(paths, next_uses, is_served, strict=True)
    ]
    return summarize(
        trace,
        policy=CLAIRVOYANT,
        num_blocks=num_blocks,
        hit_blocks=np.array(hit_blocks, dtype=np.int64),
        num_uncached=is_served.count(False),
        num_evictions=cache.num_evictions,
        num_evicted_blocks=cache.num_evicted_blocks,
        cost=cost,
    )


def _next_uses(
    paths: Sequence[Ints], is_served: Sequence[bool], num_runs: int
) -> list[Ints]:
    """Return for each request when the runs of its path are used next, after it.

    A time is a request's number; what is never used again has the number after the last.
    """
    upcoming = np.full(num_runs, len(paths), dtype=np.int64)
    found = []
    for number in range(len(paths) - 1, -1, -1):
        path = paths[number]
        found.append(upcoming[path])
        if is_served[number]:
            upcoming[path] = number
    return found[::-1]


class _Cache:
    """What is cached of each run, always its beginning.

    Only leaves stand in the heap: the furthest next use of all is always a leaf's. An
    entry counts while the run is a leaf and its next use is the entry's.
    """

    __slots__ = (
        "_cached",
        "_heap",
        "_holds_prompts",
        "_lengths",
        "_next_use",
        "_num_children",
        "_num_free",
        "_parents",
        "num_evicted_blocks",
        "num_evictions",
    )

    def __init__(self, tree: BlockTree, num_blocks: int, *, holds_prompts: bool) -> None:
        self._holds_prompts = holds_prompts
        num_runs = len(tree.lengths)
        self._parents: list[int] = tree.parents.tolist()
        self._lengths = tree.lengths
        self._cached = np.zeros(num_runs, dtype=np.int64)
        self._next_use = np.zeros(num_runs, dtype=np.int64)
        self._num_children = [0] * num_runs
        self._heap: list[tuple[int, int]] = []
        self._num_free = num_blocks
        self.num_evictions = 0
        self.num_evicted_blocks = 0

    def serve(self, path: Ints, next_uses: Ints) -> int:
        """Serve a prompt that fits; return how many of its blocks were there."""
        if len(path) == 0:
            return 0
        cached = self._cached[path]
        num_hits = int(cached.sum())
        lengths = self._lengths[path]
        missing = int(lengths.sum()) - num_hits
        for run in path[cached == 0].tolist():
            self._num_children[self._parents[run]] += 1
        self._cached[path] = lengths
        self._next_use[path] = next_uses
        end = int(path[-1])
        self._num_free -= missing
        # With one child more than it has, the end is no leaf, nor is what comes before.
        self._num_children[end] += 1
        if self._holds_prompts:
            self._make_room()
        self._num_children[end] -= 1
        self._push_leaf(end)
        self._make_room()
        return num_hits

    def _make_room(self) -> None:
        while self._num_free < 0:
            self._evict_some()

    def _evict_some(self) -> None:
        use, run = self._heap[0]
        if -use != self._next_use[run] or self._num_children[run] or not self._cached[run]:
            heapq.heappop(self._heap)
            return
        num_evicted = min(int(self._cached[run]), -self._num_free)
        self._cached[run] -= num_evicted
        self._num_free += num_evicted
        self.num_evictions += 1
        self.num_evicted_blocks += num_evicted
        if self._cached[run] == 0:
            heapq.heappop(self._heap)
            parent = self._parents[run]
            self._num_children[parent] -= 1
            self._push_leaf(parent)

    def _push_leaf(self, run: int) -> None:
        if run != 0 and self._num_children[run] == 0:
            heapq.heappush(self._heap, (-int(self._next_use[run]), run))
