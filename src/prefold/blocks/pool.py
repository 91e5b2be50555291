"""Block pool: which physical blocks there are, and the state of each.

::

              allocate                publish               rest
      free  ----------->  private  ------------>  shared  -------->  idle
        ^                    |                       ^                 |
        |<-------------------'                       `-----------------'
        |                                                 use          |
        `--------------------------------------------------------------'

The pool knows no tokens and no requests; it only guards the states.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from prefold.blocks.table import BlockIds
from prefold.errors import ConfigError, InvariantError, OutOfBlocksError


class BlockState(IntEnum):
    """What a block is; always exactly one of these."""

    #: No content.
    FREE = 0
    #: One lease's, not published.
    PRIVATE = 1
    #: Published, on some lease's path.
    SHARED = 2
    #: Published, on no lease's path; may be evicted.
    IDLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounts:
    """Number of blocks in each state; together they are the capacity."""

    free: int
    private: int
    shared: int
    idle: int


class BlockPool:
    """All physical blocks of one device, by state. One thread.

    Invariants:
        - every block has exactly one state, and the counts say how many have each
        - the free list holds exactly the free blocks, each once
    """

    __slots__ = ("_counts", "_free", "_num_free", "_states", "generations", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"the pool needs at least 1 block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._states = np.zeros(num_blocks, dtype=np.int8)
        #: How often each block was handed out: what is kept beside a block's KV belongs
        #: to it only as long as this number is the same. Read by others, changed here.
        self.generations = np.zeros(num_blocks, dtype=np.int64)
        # A stack whose top is its end; low ids are handed out first.
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_free = num_blocks
        self._counts = [num_blocks, 0, 0, 0]

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def counts(self) -> BlockCounts:
        free, private, shared, idle = self._counts
        return BlockCounts(free=free, private=private, shared=shared, idle=idle)

    @property
    def num_idle(self) -> int:
        return self._counts[BlockState.IDLE]

    def allocate(self, num_blocks: int) -> BlockIds:
        """Make ``num_blocks`` free blocks private and return their ids.

        Raises:
            OutOfBlocksError: Fewer are free; nothing is changed.
        """
        if num_blocks > self._num_free:
            raise OutOfBlocksError(num_blocks, self._num_free)
        start = self._num_free - num_blocks
        ids = self._free[start : self._num_free][::-1].copy()
        self._num_free = start
        self._move(ids, BlockState.FREE, BlockState.PRIVATE)
        self.generations[ids] += 1
        return ids

    def publish(self, ids: BlockIds) -> None:
        """Private blocks became part of the tree, on their lease's path."""
        self._move(ids, BlockState.PRIVATE, BlockState.SHARED)

    def rest(self, ids: BlockIds) -> None:
        """The last lease left these shared blocks."""
        self._move(ids, BlockState.SHARED, BlockState.IDLE)

    def use(self, ids: BlockIds) -> None:
        """A lease came to these idle blocks."""
        self._move(ids, BlockState.IDLE, BlockState.SHARED)

    def free(self, ids: BlockIds, state: BlockState) -> None:
        """Give back blocks, all of which are in ``state``."""
        self._move(ids, state, BlockState.FREE)
        end = self._num_free + len(ids)
        self._free[self._num_free : end] = ids[::-1]
        self._num_free = end

    def state_of(self, block_id: int) -> BlockState:
        return BlockState(int(self._states[block_id]))

    def ids_in(self, state: BlockState) -> BlockIds:
        """Return the ids of all blocks in ``state``. O(blocks); for checks."""
        return np.flatnonzero(self._states == state).astype(np.int32)

    def _move(self, ids: BlockIds, source: BlockState, target: BlockState) -> None:
        if (self._states[ids] != source).any():
            raise InvariantError(f"a block to become {target.name} was not {source.name}")
        self._states[ids] = target
        self._counts[source] -= len(ids)
        self._counts[target] += len(ids)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the states, counts and free list disagree."""
        counted = np.bincount(self._states, minlength=len(BlockState)).tolist()
        if counted != self._counts:
            raise InvariantError(f"states are {counted}, counts say {self._counts}")
        if self._num_free != self._counts[BlockState.FREE]:
            raise InvariantError("the free list has another length than the free count")
        listed = np.sort(self._free[: self._num_free])
        if not np.array_equal(listed, self.ids_in(BlockState.FREE)):
            raise InvariantError("the free list is not the set of free blocks")
