from __future__ import annotations

import errno
import mmap
import os

import pytest
import torch

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.blocks.table import BlockCopy, BlockId
from prefold.engine.kv_store import KvStore
from prefold.errors import ConfigError

LAYOUT = KvLayout(
    block_size=4,
    layers=(
        LayerShape(num_kv_heads=2, key_size=12, value_size=8),
        LayerShape(num_kv_heads=1, key_size=4, value_size=4),
    ),
    itemsize=4,
)


def make_store() -> KvStore:
    store = KvStore(LAYOUT, 3, dtype=torch.float32, device=torch.device("cpu"))
    for layer in range(2):
        for view in (store.key_view(layer), store.value_view(layer)):
            view.copy_(torch.randn(view.shape))
    return store


def test_views_cover_all_blocks_and_one_more_for_padding() -> None:
    store = make_store()
    assert store.key_view(0).shape == (4, 4, 2, 12)
    assert store.value_view(0).shape == (4, 4, 2, 8)
    assert store.scratch_block == 3


def test_a_block_is_contiguous_over_layers_keys_before_values() -> None:
    store = make_store()
    parts = [store.key_view(0), store.value_view(0), store.key_view(1), store.value_view(1)]
    expected = torch.cat([part[2].flatten() for part in parts]).numpy().tobytes()
    assert store.block_bytes(BlockId(2)) == expected
    assert len(expected) == LAYOUT.block_bytes


def test_rows_name_heads_at_slots_in_every_layer() -> None:
    store = make_store()
    slots = torch.tensor([9, 0, 14])
    for layer in range(2):
        for plane in (store.keys(layer), store.values(layer)):
            index = store.rows_of(slots, plane.geometry)
            got = plane.rows[index].flatten(2)
            assert torch.equal(got, plane.view.flatten(0, 1)[slots])


def test_a_copy_moves_the_first_positions_of_all_layers_and_no_others() -> None:
    store = make_store()
    before = [store.key_view(layer).clone() for layer in range(2)]

    store.copy_blocks([BlockCopy(source=BlockId(0), target=BlockId(2), num_tokens=3)])

    for layer in range(2):
        keys = store.key_view(layer)
        assert torch.equal(keys[2, :3], before[layer][0, :3])
        assert torch.equal(keys[2, 3:], before[layer][2, 3:])
        assert torch.equal(keys[:2], before[layer][:2])


def test_later_copies_see_earlier_ones() -> None:
    store = make_store()
    source = store.block_bytes(BlockId(0))

    store.copy_blocks(
        [
            BlockCopy(source=BlockId(0), target=BlockId(1), num_tokens=4),
            BlockCopy(source=BlockId(1), target=BlockId(2), num_tokens=4),
        ]
    )

    assert store.block_bytes(BlockId(2)) == source


def test_a_dtype_of_another_size_than_the_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 bytes a number"):
        KvStore(LAYOUT, 1, dtype=torch.float16, device=torch.device("cpu"))


def test_a_forked_process_writes_into_memory_of_its_own() -> None:
    store = make_store()
    before = store.block_bytes(BlockId(1))
    child = os.fork()
    if child == 0:
        store.key_view(0).zero_()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert store.block_bytes(BlockId(1)) == before


def test_a_system_without_large_pages_has_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class PlainPages(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", PlainPages)
    assert make_store().key_view(0).shape == (4, 4, 2, 12)


def test_more_than_there_is_is_no_memory() -> None:
    for num_blocks in (2**50, 2**70):
        with pytest.raises(MemoryError, match="bytes for KV"):
            KvStore(LAYOUT, num_blocks, dtype=torch.float32, device=torch.device("cpu"))
