import numpy as np
import pytest

from prefold.blocks.pool import BlockPool, BlockState
from prefold.errors import ConfigError, InvariantError, OutOfBlocksError


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ConfigError, match="at least 1 block, got 0"):
        BlockPool(0)


def test_low_ids_are_handed_out_first_and_each_once() -> None:
    pool = BlockPool(5)
    assert pool.allocate(2).tolist() == [0, 1]
    assert pool.allocate(3).tolist() == [2, 3, 4]
    assert pool.num_free == 0


def test_too_many_changes_nothing_and_says_both_numbers() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError, match="3 blocks needed, 2 available"):
        pool.allocate(3)
    pool.check_invariants()
    assert pool.num_free == 2


def test_freed_blocks_come_back_before_others() -> None:
    pool = BlockPool(5)
    ids = pool.allocate(3)
    pool.free(ids, BlockState.PRIVATE)
    assert pool.allocate(3).tolist() == ids.tolist()


def test_allocated_ids_are_no_view_of_the_free_list() -> None:
    pool = BlockPool(3)
    ids = pool.allocate(2)
    ids[:] = 99
    pool.check_invariants()


@pytest.mark.parametrize("state", [BlockState.SHARED, BlockState.IDLE, BlockState.FREE])
def test_a_block_is_freed_only_out_of_the_state_it_is_in(state: BlockState) -> None:
    pool = BlockPool(2)
    ids = pool.allocate(1)
    with pytest.raises(InvariantError, match="to become FREE"):
        pool.free(ids, state)
    assert pool.state_of(0) is BlockState.PRIVATE


# Every line of check_invariants, by breaking the state on purpose.


def test_a_wrong_count_is_found() -> None:
    pool = BlockPool(2)
    pool._counts[BlockState.IDLE] += 1
    with pytest.raises(InvariantError, match="counts say"):
        pool.check_invariants()


def test_a_wrong_length_of_the_free_list_is_found() -> None:
    pool = BlockPool(2)
    pool._num_free = 1
    with pytest.raises(InvariantError, match="another length"):
        pool.check_invariants()


def test_a_wrong_free_list_is_found() -> None:
    pool = BlockPool(2)
    pool._free[:] = np.array([0, 0])
    with pytest.raises(InvariantError, match="not the set"):
        pool.check_invariants()
