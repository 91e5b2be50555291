"""The block pool against sets and a counter, the block table against a list."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefold.blocks.pool import BlockPool, BlockState
from prefold.blocks.table import BlockIds, BlockTable
from prefold.errors import InvariantError, OutOfBlocksError

NUM_BLOCKS = 7


class BlockPoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held: dict[BlockState, set[int]] = {state: set() for state in BlockState}
        self.held[BlockState.FREE] = set(range(NUM_BLOCKS))

    @rule(n=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, n: int) -> None:
        free = self.held[BlockState.FREE]
        if n > len(free):
            with pytest.raises(OutOfBlocksError) as caught:
                self.pool.allocate(n)
            assert (caught.value.num_needed, caught.value.num_available) == (n, len(free))
            return
        ids = self.pool.allocate(n).tolist()
        assert len(set(ids)) == n
        assert set(ids) <= free, "a held block was handed out"
        free -= set(ids)
        self.held[BlockState.PRIVATE] |= set(ids)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.pool.publish(self._pick(data, BlockState.PRIVATE, BlockState.SHARED))

    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        self.pool.rest(self._pick(data, BlockState.SHARED, BlockState.IDLE))

    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        self.pool.use(self._pick(data, BlockState.IDLE, BlockState.SHARED))

    @rule(data=st.data(), state=st.sampled_from([BlockState.PRIVATE, BlockState.IDLE]))
    def free(self, data: st.DataObject, state: BlockState) -> None:
        self.pool.free(self._pick(data, state, BlockState.FREE), state)

    @rule(data=st.data())
    def refuse_a_block_of_another_state(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, NUM_BLOCKS - 1))
        for move, source in (
            (self.pool.publish, BlockState.PRIVATE),
            (self.pool.rest, BlockState.SHARED),
            (self.pool.use, BlockState.IDLE),
        ):
            if block not in self.held[source]:
                with pytest.raises(InvariantError, match="was not"):
                    move(_ids([block]))

    def _pick(
        self, data: st.DataObject, source: BlockState, target: BlockState
    ) -> BlockIds:
        blocks = (
            data.draw(st.sets(st.sampled_from(sorted(self.held[source]))))
            if (self.held[source])
            else set()
        )
        self.held[source] -= blocks
        self.held[target] |= blocks
        return _ids(sorted(blocks))

    @invariant()
    def agrees_with_the_sets(self) -> None:
        self.pool.check_invariants()
        counted = Counter({state: len(ids) for state, ids in self.held.items()})
        counts = self.pool.counts
        assert (counts.free, counts.private) == (
            counted[BlockState.FREE],
            counted[BlockState.PRIVATE],
        )
        assert (counts.shared, counts.idle) == (
            counted[BlockState.SHARED],
            counted[BlockState.IDLE],
        )
        assert (self.pool.num_free, self.pool.num_idle) == (counts.free, counts.idle)
        for state, ids in self.held.items():
            assert set(self.pool.ids_in(state).tolist()) == ids
            assert all(self.pool.state_of(block) is state for block in ids)


class BlockTableMachine(RuleBasedStateMachine):
    @initialize(ids=st.lists(st.integers(0, 99), max_size=3))
    def begin(self, ids: list[int]) -> None:
        self.list = list(ids)
        self.table = BlockTable(_ids(ids))

    @rule(ids=st.lists(st.integers(0, 99), max_size=9))
    def append(self, ids: list[int]) -> None:
        self.list += ids
        self.table.append(_ids(ids))

    @rule(data=st.data(), ids=st.lists(st.integers(0, 99), max_size=9))
    def replace(self, data: st.DataObject, ids: list[int]) -> None:
        start = data.draw(st.integers(0, len(self.list)))
        expected = self.list[start : start + len(ids)]
        replaced = self.table.replace(start, _ids(ids))
        self.list[start : start + len(ids)] = ids
        assert replaced.tolist() == expected

    @invariant()
    def agrees_with_the_list(self) -> None:
        assert self.table.ids.tolist() == self.list
        assert len(self.table) == len(self.list)
        if len(set(self.list)) == len(self.list):
            self.table.check_invariants()
        else:
            with pytest.raises(InvariantError, match="twice"):
                self.table.check_invariants()


def _ids(blocks: list[int]) -> BlockIds:
    return np.array(blocks, dtype=np.int32)


TestBlockPool = BlockPoolMachine.TestCase
TestBlockTable = BlockTableMachine.TestCase
