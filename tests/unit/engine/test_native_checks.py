"""Bad input to the kernel is an exception, and no memory is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.engine.native import HAS_KERNELS
from support.kernels import KERNELS, needs_kernels

if HAS_KERNELS:
    from prefold.engine import _kernels

pytestmark = needs_kernels

HEADS, KV_HEADS, ROWS, SIZE, BLOCK_SIZE, NUM_BLOCKS = 4, 2, 16, 16, 16, 4
PART = KV_HEADS * SIZE * BLOCK_SIZE


def _step_arguments() -> dict[str, Any]:
    return {
        "blocks": np.array([0, 2, 1], np.int32),
        "table_lengths": np.array([2, 1]),
        "starts": np.array([20, 0]),
        "counts": np.array([3, 5]),
        "block_size": BLOCK_SIZE,
    }


def _call_arguments() -> dict[str, Any]:
    return {
        "step": _kernels.Step(**_step_arguments()),
        "query": torch.ones(1, HEADS, ROWS, SIZE),
        "keys": torch.ones(1, KV_HEADS, ROWS, SIZE),
        "values": torch.ones(1, KV_HEADS, ROWS, SIZE),
        "out": torch.zeros(1, ROWS, HEADS, SIZE),
        "key_offset": 0,
        "value_offset": PART,
        "key_scale_offset": None,
        "value_scale_offset": None,
        "scaling": 0.3,
        "window": None,
        "softcap": None,
        "sinks": None,
        "num_threads": 2,
    }


def _pool(numbers: torch.Tensor) -> _kernels.Pool:
    return _kernels.Pool(numbers, block_numbers=2 * PART, kernel=KERNELS[0])


def _numbers() -> torch.Tensor:
    return torch.zeros(NUM_BLOCKS * 2 * PART)


BAD_STEPS: dict[str, dict[str, Any]] = {
    "a negative block": {"blocks": np.array([0, -1, 1], np.int32)},
    "blocks of another type": {"blocks": np.array([0, 2, 1], np.int64)},
    "blocks with gaps": {"blocks": np.arange(6, dtype=np.int32)[::2]},
    "too few blocks": {"blocks": np.array([0, 2], np.int32)},
    "too many blocks": {"blocks": np.arange(4, dtype=np.int32)},
    "an empty table": {"table_lengths": np.array([3, 0])},
    "a negative table": {"table_lengths": np.array([4, -1])},
    "a huge table": {"table_lengths": np.array([2**62, 1])},
    "no tokens": {"counts": np.array([3, 0])},
    "a length beyond the table": {"counts": np.array([13, 5])},
    "a huge count": {"counts": np.array([2**62, 5])},
    "a negative start": {"starts": np.array([-1, 0])},
    "a huge start": {"starts": np.array([2**62, 0])},
    "fewer starts than tables": {"starts": np.array([20])},
    "no block size": {"block_size": 0},
    "a smaller block size": {"block_size": 4},
}


@pytest.mark.parametrize("change", BAD_STEPS.values(), ids=BAD_STEPS.keys())
def test_a_step_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        _kernels.Step(**{**_step_arguments(), **change})


def _reshaped(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    return {name: change(_call_arguments()[name])} if HAS_KERNELS else {}


BAD_CALLS: dict[str, dict[str, Any]] = {
    **{
        f"{name}: {what}": _reshaped(name, change)
        for name in ("query", "keys", "values", "out")
        for what, change in {
            "another type": lambda x: x.double(),
            "a 16-bit type": lambda x: x.bfloat16(),
            "whole numbers": lambda x: x.int(),
            "a device without memory": lambda x: x.to("meta"),
            "one axis less": lambda x: x[0],
            "one axis more": lambda x: x[None],
            "two batches": lambda x: x.repeat(2, 1, 1, 1),
            "fewer rows": lambda x: x[:, :, :-1] if x.shape[2] == ROWS else x[:, :-1],
            "no numbers": lambda x: x[..., :0],
            "gaps": lambda x: x.repeat_interleave(2, 3)[..., ::2],
            "a larger size": lambda x: x.repeat(1, 1, 1, 17),
        }.items()
    },
    "out: turned round": {"out": torch.zeros(1, HEADS, ROWS, SIZE).transpose(1, 2)},
    "out: not a tensor": {"out": 1},
    "query: None": {"query": None},
    "heads that do not divide": {
        "query": torch.ones(1, 3, ROWS, SIZE),
        "out": torch.zeros(1, ROWS, 3, SIZE),
    },
    "no key heads": {"keys": torch.ones(1, 0, ROWS, SIZE)},
    "a negative offset": {"key_offset": -1},
    "keys behind the block": {"key_offset": PART + 1},
    "values behind the block": {"value_offset": PART + 1},
    "a huge offset": {"value_offset": 2**62},
    "scales for numbers that need none": {"key_scale_offset": 0, "value_scale_offset": 0},
    "scaling that is no number": {"scaling": float("nan")},
    "no window": {"window": 0},
    "a negative window": {"window": -5},
    "a soft cap of nothing": {"softcap": 0.0},
    "a soft cap that is infinite": {"softcap": float("inf")},
    "too few sinks": {"sinks": torch.ones(HEADS - 1)},
    "sinks of another type": {"sinks": torch.ones(HEADS).double()},
    "sinks with gaps": {"sinks": torch.ones(2 * HEADS)[::2]},
    "no threads": {"num_threads": 0},
    "too many threads": {"num_threads": 10**6},
}


@pytest.mark.parametrize("change", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_call_that_cannot_be_is_refused_and_changes_nothing(
    change: dict[str, Any],
) -> None:
    numbers = _numbers()
    arguments = {**_call_arguments(), **change}

    # A tensor without memory cannot even be handed over.
    with pytest.raises((ValueError, TypeError, BufferError, NotImplementedError)):
        _pool(numbers).attend(**arguments)

    assert not numbers.any()


#: Bytes of the scales of keys, or values, in a block of int8.
SCALES = 4 * KV_HEADS * BLOCK_SIZE


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (None, None),
        (2 * PART, None),
        (None, 2 * PART),
        (-1, 2 * PART),
        (2 * PART, 2 * PART + SCALES + 1),
        (2**62, 2 * PART),
        (2 * PART, 2**63 - 1),
    ],
)
def test_whole_numbers_need_scales_that_fit_into_a_block(
    keys: int | None, values: int | None
) -> None:
    block = 2 * (PART + SCALES)
    numbers = torch.zeros(NUM_BLOCKS * block, dtype=torch.int8)
    pool = _kernels.Pool(numbers, block_numbers=block, kernel=KERNELS[0])
    places = {"key_scale_offset": 2 * PART, "value_scale_offset": 2 * PART + SCALES}
    wrong = {"key_scale_offset": keys, "value_scale_offset": values}
    with pytest.raises(ValueError, match="scales"):
        pool.attend(**{**_call_arguments(), **wrong})
    assert not numbers.any()
    pool.attend(**{**_call_arguments(), **places})
    assert numbers.any()


def test_a_block_outside_the_pool_is_refused() -> None:
    numbers = _numbers()
    blocks = np.array([0, NUM_BLOCKS, 1], np.int32)
    step = _kernels.Step(**{**_step_arguments(), "blocks": blocks})
    with pytest.raises(ValueError, match="outside the pool"):
        _pool(numbers).attend(**{**_call_arguments(), "step": step})
    assert not numbers.any()


@pytest.mark.parametrize(
    "numbers",
    [
        torch.zeros(64).double(),
        torch.zeros(64, dtype=torch.int32),
        torch.zeros(8, 8),
        torch.zeros(128)[::2],
        torch.zeros(64, device="meta"),
    ],
    ids=["float64", "int32", "two axes", "gaps", "no memory"],
)
def test_a_pool_that_cannot_be_is_refused(numbers: torch.Tensor) -> None:
    with pytest.raises((ValueError, TypeError, BufferError, NotImplementedError)):
        _kernels.Pool(numbers, block_numbers=16, kernel=KERNELS[0])


def test_a_pool_wants_a_kernel_of_this_machine_and_a_size() -> None:
    for change in ({"kernel": "sse"}, {"block_numbers": 0}, {"block_numbers": -1}):
        arguments: dict[str, Any] = {"block_numbers": 16, "kernel": KERNELS[0]}
        arguments.update(change)
        with pytest.raises(ValueError, match=r"must be at least 1|no kernel"):
            _kernels.Pool(torch.zeros(64), **arguments)


_SMALL = st.integers(-2, 40)


@given(
    blocks=st.lists(st.integers(-1, NUM_BLOCKS + 1), max_size=6),
    slices=st.lists(st.tuples(st.integers(-1, 4), _SMALL, _SMALL), max_size=4),
    block_size=st.integers(-1, 20),
)
def test_whatever_a_step_says_it_is_refused_or_stays_inside_the_pool(
    blocks: list[int], slices: list[tuple[int, int, int]], block_size: int
) -> None:
    # The sums of a refused step are left as they are; those of a step that is taken lie in
    # its own blocks.
    columns = np.array(slices, np.int64).reshape(-1, 3).T.copy()
    part = KV_HEADS * SIZE * max(block_size, 1)
    numbers = torch.zeros(NUM_BLOCKS * 2 * part)
    arguments = {**_call_arguments(), "value_offset": part}
    pool = _kernels.Pool(numbers, block_numbers=2 * part, kernel=KERNELS[0])
    try:
        arguments["step"] = _kernels.Step(
            np.array(blocks, np.int32), *columns, block_size=block_size
        )
        pool.attend(**arguments)
    except ValueError:
        assert not numbers.any()
        return
    written = numbers.view(NUM_BLOCKS, -1).any(1).nonzero().flatten().tolist()
    assert set(written) <= set(blocks)
    assert int((numbers != 0).sum()) <= 2 * KV_HEADS * SIZE * int(columns[2].sum())


@pytest.mark.parametrize("spoilt", [float("inf"), float("-inf"), float("nan")])
def test_one_number_that_is_none_is_found_wherever_it_is(spoilt: float) -> None:
    generator = torch.Generator().manual_seed(0)
    # Heads side by side in a row, as layers make them.
    given = torch.randn(1, 3, 7, 40, generator=generator)
    largest = torch.finfo(torch.float32).max
    given[0, 0, 0, :2] = torch.tensor([largest, -largest])
    rows = given.transpose(1, 2).contiguous()
    for keys in (given, rows.transpose(1, 2), given[:, :, ::2], given[:, ::2]):
        assert _kernels.have_numbers(keys, keys)
        for index in range(keys.numel()):
            row, column = divmod(index, keys.shape[3])
            head, row = divmod(row, keys.shape[2])
            place = 0, head, row, column
            before = float(keys[place])
            keys[place] = spoilt
            assert not _kernels.have_numbers(keys, torch.ones_like(keys))
            assert not _kernels.have_numbers(torch.ones_like(keys), keys)
            keys[place] = before


@pytest.mark.parametrize(
    "wrong",
    [
        torch.ones(3, 7, 40),
        torch.ones(2, 3, 7, 40),
        torch.ones(1, 3, 7, 40, dtype=torch.float16),
        torch.ones(1, 3, 40, 7).transpose(2, 3),
    ],
)
def test_what_is_no_rows_of_heads_is_not_looked_at(wrong: torch.Tensor) -> None:
    right = torch.ones(1, 3, 7, 40)
    for pair in ((wrong, right), (right, wrong)):
        with pytest.raises(ValueError, match=r"keys|values"):
            _kernels.have_numbers(*pair)
