"""Thread shares: how torch cuts an elementwise loop, and lengths that cut cleanly.

On the CPU an elementwise function gets consecutive shares of its elements, one a
thread. Inside a share whole vectors go through the vector function and the rest,
fewer than a vector, through the scalar one, whose last bit may differ. Which elements
are "the rest" depends on the total length and the thread count, so a token's
activation would depend on how many tokens came with it. For a length from
``even_length`` every share is whole vectors, and no element meets the scalar function.
"""

from __future__ import annotations

import math

import torch

#: Elements of the widest vectors in use: 64 bytes of float32, 32 of a 16-bit type
#: that is converted in pairs.
_VECTOR = 32

#: Shares are no smaller than this (``at::internal::GRAIN_SIZE``).
_GRAIN = 32768


def even_length(length: int, num_threads: int) -> int:
    """Return a length, not below ``length``, of which all shares are whole vectors."""
    while True:
        # Most functions make as many shares as there are grains, GELU one a thread.
        shares = max(min(num_threads, -(-length // _GRAIN)), 1)
        multiple = _VECTOR * math.lcm(shares, num_threads)
        even = -(-length // multiple) * multiple
        # Growing past a multiple of the grain may add a share, which asks for more.
        if even == length:
            return even
        length = even


class ScratchBuffers:
    """Named buffers reused from layer to layer; owned by one step.

    A buffer's content is lost when its name is taken again.
    """

    __slots__ = ("_buffers",)

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, length: int, like: torch.Tensor) -> torch.Tensor:
        """Return ``length`` elements of any content, of ``like``'s type and device."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < length or buffer.dtype != like.dtype:
            buffer = like.new_empty(length)
            self._buffers[name] = buffer
        return buffer[:length]
