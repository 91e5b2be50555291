"""Fresh pages: memory that is zero, taken when it is first written, in large pages.

A page's place is looked up before its numbers are read. Weights and KV are read in long
runs, of which a large page holds five hundred times as many.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch

#: Numbers begin where a vector of the widest registers does.
_ALIGNMENT = 64

#: Bytes that small tensors share, so that large pages fit around them.
_SLAB_BYTES = 64 << 20


def map_pages(num_bytes: int) -> mmap.mmap:
    """Return zeroed memory of this process alone.

    Raises:
        MemoryError: There is not so much.
    """
    try:
        # Private: a forked process must not write into these.
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no {num_bytes} bytes of memory") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Only advice: not every kernel has large pages.
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Slabs:
    """Hands out tensors side by side. A slab's memory goes with the last of its tensors."""

    __slots__ = ("_pages", "_used")

    def __init__(self) -> None:
        self._pages = map_pages(_SLAB_BYTES)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of zeros, without gaps.

        Raises:
            MemoryError: There is not so much.
        """
        count = prod(shape)
        num_bytes = count * dtype.itemsize
        if not num_bytes:
            return torch.empty(shape, dtype=dtype)
        if num_bytes > _SLAB_BYTES // 2:
            own = map_pages(num_bytes)
            return torch.frombuffer(own, dtype=dtype, count=count).view(shape)
        if self._used + num_bytes > _SLAB_BYTES:
            self._pages, self._used = map_pages(_SLAB_BYTES), 0
        offset = self._used
        self._used = -(-(offset + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        numbers = torch.frombuffer(self._pages, dtype=dtype, count=count, offset=offset)
        return numbers.view(shape)
