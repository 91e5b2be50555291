"""Slots: a stand-in for KV memory that remembers what was computed where.

Each slot holds a *mark* of one position: a number made of who computed it and of all
tokens up to there, as real KV depends on them. A wrong, stale or foreign block shows
as a wrong mark.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from prefold.blocks.table import BlockCopy, BlockIds
from prefold.cache import Lease

Marks = npt.NDArray[np.int64]

EMPTY = -1


def marks_of(identity: Hashable, tokens: Sequence[int]) -> Marks:
    """Return one mark a position, each made of everything before it."""
    marks = []
    mark = hash(identity)
    for token in tokens:
        mark = hash((mark, token))
        marks.append(mark)
    return np.array(marks, dtype=np.int64)


class SlotStore:
    """Marks by block and offset."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.marks = np.full((num_blocks, block_size), EMPTY, dtype=np.int64)

    def clear(self, ids: BlockIds) -> None:
        """Make blocks unreadable, as those just handed out are."""
        self.marks[ids] = EMPTY

    def write(self, lease: Lease, start: int, marks: Marks) -> None:
        for offset, mark in enumerate(marks):
            block, slot = divmod(start + offset, self.block_size)
            self.marks[lease.block_ids[block], slot] = mark

    def copy(self, order: BlockCopy) -> None:
        n = order.num_tokens
        self.marks[order.target, :n] = self.marks[order.source, :n]

    def read(self, lease: Lease, num_tokens: int) -> Marks:
        return self.marks[lease.block_ids].reshape(-1)[:num_tokens]
