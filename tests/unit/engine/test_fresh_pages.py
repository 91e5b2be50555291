from __future__ import annotations

import pytest
import torch

from prefold.engine.fresh_pages import Slabs, map_pages


def test_pages_are_zero_and_writable() -> None:
    pages = map_pages(1 << 20)
    assert len(pages) == 1 << 20
    numbers = torch.frombuffer(pages, dtype=torch.float32)
    assert not numbers.any()
    numbers += 1
    assert (numbers == 1).all()


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_more_memory_than_there_is_is_an_error(size: int) -> None:
    with pytest.raises(MemoryError):
        map_pages(size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_tensors_of_slabs_are_aligned_zero_and_apart(dtype: torch.dtype) -> None:
    slabs = Slabs()
    # More than one slab holds, and one that is too large to share any.
    shapes = [(3, 5), (1,), (7, 1000), *[(9 << 20,)] * 9, (40 << 20,), (2, 3, 4)]
    tensors = [slabs.empty(shape, dtype) for shape in shapes]
    for number, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert tensor.shape == shape
        assert tensor.dtype is dtype
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert not tensor.any()
        tensor.fill_(number + 1)
    for number, tensor in enumerate(tensors):
        assert (tensor == number + 1).all()


def test_a_tensor_of_nothing_is_one() -> None:
    assert Slabs().empty((0, 3), torch.float32).shape == (0, 3)
