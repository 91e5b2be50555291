"""Run tree: a block tree grown from runs of ids, without looking at single blocks.

Most traces number blocks in the order in which they come, so a prompt is a few runs of ids
that count up. Two such runs that begin with one id agree as far as the shorter goes, which
takes one comparison, however long they are. The tree is the one ``grow_block_tree`` makes;
where ids count up nowhere, that one is faster.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from prefold.advisor.block_tree import BlockTree
from prefold.advisor.trace import IdRuns

Ints = npt.NDArray[np.int64]


def grow_run_tree(prompts: Iterable[IdRuns]) -> BlockTree:
    """Return the block tree of these prompts. O(runs on their paths), in Python."""
    builder = _Builder()
    ends = [builder.insert(runs.tolist()) for runs in prompts]
    return _joined(builder, np.array(ends, dtype=np.int64))


class _Builder:
    """Grows the tree. A run that is cut keeps its number for the lower half."""

    __slots__ = ("children", "depths", "firsts", "lengths", "parents")

    def __init__(self) -> None:
        self.parents = [0]
        self.depths = [0]
        # Of each run its first id, and how many more follow by counting up.
        self.firsts = [0]
        self.lengths = [0]
        # Keyed by run and first id: a dict for each run would cost more.
        self.children: dict[tuple[int, int], int] = {}

    def insert(self, runs: list[list[int]]) -> int:
        at, depth = 0, 0
        for begin, count in runs:
            first, left = begin, count
            while left:
                child = self.children.get((at, first))
                if child is None:
                    at = self._add(at, depth, first, left)
                    depth += left
                    break
                length = self.lengths[child]
                agreed = min(length, left)
                at = child if agreed == length else self._cut(child, agreed)
                first += agreed
                left -= agreed
                depth += agreed
        return at

    def _add(self, parent: int, depth: int, first: int, length: int) -> int:
        run = len(self.parents)
        self.parents.append(parent)
        self.depths.append(depth)
        self.firsts.append(first)
        self.lengths.append(length)
        self.children[parent, first] = run
        return run

    def _cut(self, run: int, length: int) -> int:
        first, depth = self.firsts[run], self.depths[run]
        upper = self._add(self.parents[run], depth, first, length)
        self.firsts[run] = first + length
        self.lengths[run] -= length
        self.parents[run] = upper
        self.depths[run] = depth + length
        self.children[upper, first + length] = run
        return upper


def _joined(builder: _Builder, ends: Ints) -> BlockTree:
    """Return the tree with runs joined that are cut only because their ids do not count up.

    Such a run goes on after one that no prompt ends with and nothing else goes on after.
    """
    parents = np.array(builder.parents, dtype=np.int64)
    depths = np.array(builder.depths, dtype=np.int64)
    lengths = np.array(builder.lengths, dtype=np.int64)
    num_runs = len(parents)
    num_children = np.bincount(parents[1:], minlength=num_runs)
    is_passed = (num_children == 1) & (np.bincount(ends, minlength=num_runs) == 0)
    is_passed[0] = False
    goes_on = is_passed[parents]
    goes_on[0] = False
    # Of each run the one that it becomes part of: the first of its chain.
    heads = list(range(num_runs))
    parent_of = parents.tolist()
    for run in np.flatnonzero(goes_on)[np.argsort(depths[goes_on], kind="stable")].tolist():
        heads[run] = heads[parent_of[run]]
    head_of = np.array(heads, dtype=np.int64)
    joined = np.bincount(head_of, weights=lengths, minlength=num_runs).astype(np.int64)
    kept = np.flatnonzero(head_of == np.arange(num_runs))
    number = np.zeros(num_runs, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    return BlockTree(
        parents=number[head_of[parents[kept]]],
        lengths=joined[kept],
        depths=depths[kept],
        ends=number[head_of[ends]],
    )
