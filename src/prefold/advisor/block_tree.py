"""Block tree: the prefixes of a trace, cut into runs that are always used together.

A run is as long as can be: it is cut only where prompts part, and where one ends. So
whoever uses a block uses all of its run, and what is true of one block of a run (when it
is used next, say) is true of all::

    prompts  a b c d e      run 1  a b c      run 2  d e
             a b c f g                        run 3  f g
             a b c

A trace of R requests has at most 2 R runs, however many blocks it has. The root, run 0,
is empty; the empty prompt ends there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prefold.advisor.trace import BlockIdArray

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockTree:
    """The runs of a trace; arrays have one entry a run, ``ends`` one a request.

    Attributes:
        parents: The run before each; the root is its own.
        lengths: Blocks in each run.
        depths: Blocks before each run.
        ends: The run that each request's prompt ends with.
    """

    parents: Ints = field(repr=False)
    lengths: Ints = field(repr=False)
    depths: Ints = field(repr=False)
    ends: Ints = field(repr=False)

    @property
    def num_blocks(self) -> int:
        """Distinct blocks of the trace: blocks after different prefixes differ."""
        return int(self.lengths.sum())

    def paths(self) -> list[Ints]:
        """Return the runs of each request's prompt, from first to last. O(their sum)."""
        parents = self.parents.tolist()
        known: dict[int, Ints] = {}
        paths = []
        for end in self.ends.tolist():
            path = known.get(end)
            if path is None:
                runs = []
                at = end
                while at != 0:
                    runs.append(at)
                    at = parents[at]
                path = known[end] = np.array(runs[::-1], dtype=np.int64)
            paths.append(path)
        return paths


def grow_block_tree(prompts: Iterable[BlockIdArray]) -> BlockTree:
    """Return the block tree of these prompts. O(runs on their paths), in Python."""
    builder = _Builder()
    ends = [builder.insert(prompt) for prompt in prompts]
    return BlockTree(
        parents=np.array(builder.parents, dtype=np.int64),
        lengths=np.array([len(ids) for ids in builder.ids], dtype=np.int64),
        depths=np.array(builder.depths, dtype=np.int64),
        ends=np.array(ends, dtype=np.int64),
    )


class _Builder:
    """Grows the tree. A run that is cut keeps its number for the lower half."""

    __slots__ = ("children", "depths", "ids", "parents")

    def __init__(self) -> None:
        self.parents = [0]
        self.depths = [0]
        self.ids: list[BlockIdArray] = [np.empty(0, dtype=np.int64)]
        # Keyed by run and first id: a dict for each run would cost more.
        self.children: dict[tuple[int, int], int] = {}

    def insert(self, prompt: BlockIdArray) -> int:
        at = position = 0
        while position < len(prompt):
            child = self.children.get((at, int(prompt[position])))
            if child is None:
                # A copy, so that a short run does not keep a whole prompt alive.
                return self._add(at, position, prompt[position:].copy())
            ids = self.ids[child]
            length = min(len(ids), len(prompt) - position)
            differs = ids[:length] != prompt[position : position + length]
            first = int(differs.argmax())
            agreed = first if differs[first] else length
            at = child if agreed == len(ids) else self._cut(child, agreed)
            position += agreed
        return at

    def _add(self, parent: int, depth: int, ids: BlockIdArray) -> int:
        run = len(self.parents)
        self.parents.append(parent)
        self.depths.append(depth)
        self.ids.append(ids)
        self.children[parent, int(ids[0])] = run
        return run

    def _cut(self, run: int, length: int) -> int:
        ids, parent, depth = self.ids[run], self.parents[run], self.depths[run]
        upper = self._add(parent, depth, ids[:length])
        self.ids[run] = ids[length:]
        self.parents[run] = upper
        self.depths[run] = depth + length
        self.children[upper, int(ids[length])] = run
        return upper
