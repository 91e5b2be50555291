import numpy as np
import pytest

from prefold.blocks.table import BlockTable, num_blocks_for
from prefold.errors import InvariantError


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)]
)
def test_blocks_for_tokens_are_rounded_up(num_tokens: int, num_blocks: int) -> None:
    assert num_blocks_for(num_tokens, 16) == num_blocks


def table(*ids: int) -> BlockTable:
    return BlockTable(np.array(ids, dtype=np.int32))


def test_appending_keeps_the_order() -> None:
    grown = table()
    for block in range(100):
        grown.append(np.array([block], dtype=np.int32))
    assert grown.ids.tolist() == list(range(100))


def test_replacing_in_the_middle_returns_what_was_there() -> None:
    changed = table(1, 2, 3, 4)
    replaced = changed.replace(1, np.array([8, 9], dtype=np.int32))
    assert replaced.tolist() == [2, 3]
    assert changed.ids.tolist() == [1, 8, 9, 4]


def test_replacing_past_the_end_appends() -> None:
    changed = table(1, 2)
    replaced = changed.replace(1, np.array([7, 8, 9], dtype=np.int32))
    assert replaced.tolist() == [2]
    assert changed.ids.tolist() == [1, 7, 8, 9]


def test_a_block_that_stands_twice_is_found() -> None:
    with pytest.raises(InvariantError, match="twice"):
        table(1, 2, 1).check_invariants()
