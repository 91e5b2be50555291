from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.blocks.table import BlockCopy, BlockId
from prefold.engine.kv_store import KvStore
from prefold.engine.quantization import QUANTIZED, quantize, scale_itemsize
from prefold.errors import ConfigError

CPU = torch.device("cpu")

LAYERS = (
    LayerShape(num_kv_heads=2, key_size=12, value_size=8),
    LayerShape(num_kv_heads=1, key_size=3, value_size=2),
)

LAYOUT = KvLayout(block_size=5, layers=LAYERS, itemsize=1, scale_itemsize=4)


def quantize_one(numbers: list[float]) -> tuple[list[int], float]:
    """The same in Python's own numbers, exact but for the scale and the quotients."""
    scale = float(torch.tensor(max(abs(x) for x in numbers)) / 127)
    if scale == 0:
        return [0] * len(numbers), 0.0
    quotients = [float(torch.tensor(x) / torch.tensor(scale)) for x in numbers]
    return [round(min(max(x, -127.0), 127.0)) for x in quotients], scale


@given(
    st.lists(
        st.lists(
            st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False),
            min_size=6,
            max_size=6,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_row_is_rounded_by_its_own_scale(rows: list[list[float]]) -> None:
    stored, scales = quantize(torch.tensor(rows))
    assert stored.dtype is QUANTIZED
    for row, got, scale in zip(rows, stored.tolist(), scales.tolist(), strict=True):
        assert (got, scale) == quantize_one(row)
        for number, kept in zip(row, got, strict=True):
            # Half a step, and a little for the rounding of the scale and of the quotient.
            assert abs(kept * scale - number) <= scale * 0.5001 + 1e-44


def test_the_largest_number_is_kept_whatever_its_size() -> None:
    numbers = torch.logspace(-30, 30, 61)[:, None] * torch.tensor([1.0, -1.0, 0.3])
    stored, scales = quantize(numbers)
    assert stored[:, 0].tolist() == [127] * 61
    assert stored[:, 1].tolist() == [-127] * 61
    torch.testing.assert_close(stored[:, 0] * scales, numbers[:, 0], rtol=1e-6, atol=0)


def test_nothing_stays_nothing_and_what_is_no_number_is_seen_in_the_scale() -> None:
    rows = torch.tensor([[0.0, -0.0], [1.0, math.nan], [1.0, math.inf]])
    stored, scales = quantize(rows)
    assert stored[0].tolist() == [0, 0]
    assert scales[0] == 0
    assert not scales[1:].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrower_numbers_are_quantized_as_they_are(dtype: torch.dtype) -> None:
    numbers = torch.randn(7, 16).to(dtype)
    stored, scales = quantize(numbers)
    again, same = quantize(numbers.float())
    assert torch.equal(stored, again)
    assert torch.equal(scales, same)


# -- the store --------------------------------------------------------------------------


def make_store(num_blocks: int = 3) -> KvStore:
    """Return a store every byte of which is something."""
    store = KvStore(LAYOUT, num_blocks, dtype=QUANTIZED, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for layer in range(2):
        for plane in (store.keys(layer), store.values(layer)):
            plane.view.copy_(
                torch.randint(-127, 128, plane.view.shape, generator=generator)
            )
            assert plane.scales is not None
            plane.scales.copy_(torch.rand(plane.scales.shape, generator=generator))
    return store


def test_a_block_is_its_numbers_and_behind_them_its_scales() -> None:
    store = make_store()
    planes = [p for layer in range(2) for p in (store.keys(layer), store.values(layer))]
    numbers = b"".join(p.view[1].contiguous().numpy().tobytes() for p in planes)
    scales = b"".join(
        p.scales[1].t().contiguous().numpy().tobytes()
        for p in planes
        if p.scales is not None
    )
    found = store.block_bytes(BlockId(1))
    assert len(found) == LAYOUT.block_bytes
    assert found[: len(numbers)] == numbers
    assert found[LAYOUT.scale_offset :] == scales
    assert len(numbers) + len(scales) in range(len(found) - 3, len(found) + 1)


def test_rows_name_heads_at_slots_where_scales_leave_odd_blocks() -> None:
    store = make_store()
    slots = torch.tensor([11, 0, 14, 9])
    for layer in range(2):
        for plane in (store.keys(layer), store.values(layer)):
            index = store.rows_of(slots, plane.geometry)
            got = plane.rows[index].flatten(2)
            assert torch.equal(got, plane.view.flatten(0, 1)[slots])


def test_a_copy_takes_the_scales_of_its_positions_and_no_others() -> None:
    store, before = make_store(), make_store()
    store.copy_blocks([BlockCopy(source=BlockId(0), target=BlockId(2), num_tokens=3)])
    for layer in range(2):
        for now, then in zip(
            (store.keys(layer), store.values(layer)),
            (before.keys(layer), before.values(layer)),
            strict=True,
        ):
            for moved, was in ((now.view, then.view), (now.scales, then.scales)):
                assert moved is not None
                assert was is not None
                assert torch.equal(moved[2, :3], was[0, :3])
                assert torch.equal(moved[2, 3:], was[2, 3:])
                assert torch.equal(moved[[0, 1, 3]], was[[0, 1, 3]])


def test_a_layout_and_a_type_have_to_agree_about_scales() -> None:
    assert scale_itemsize(torch.float32) == 0
    plain = KvLayout(block_size=5, layers=LAYERS, itemsize=1)
    with pytest.raises(ConfigError, match="scales of 0 bytes"):
        KvStore(plain, 1, dtype=QUANTIZED, device=CPU)
    with pytest.raises(ConfigError, match="scales of 4 bytes"):
        KvStore(LAYOUT, 1, dtype=torch.uint8, device=CPU)
