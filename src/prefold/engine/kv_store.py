"""KV store: the tensor behind the block ids.

One flat tensor holds every block, a block's bytes contiguous over the layers::

    block 0                              | block 1 ...  | scratch block
    keys 0 | values 0 | keys 1 | values 1 | ...

The order inside such a part is the layout's: what the attention in use reads fastest.
Token-major parts are seen as rows of ``unit`` numbers, the greatest common divisor of all
key and value sizes, so one index over rows reads or writes any part of any layer
by a plain ``index_select`` or ``index_copy_``, whatever the sizes of the layers.

Whole numbers have their scales in the same block (see ``KvLayout`` and ``quantization``).

The scratch block, with the id ``num_blocks``, takes what padding rows write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from prefold.blocks.layout import KvLayout, KvOrder
from prefold.blocks.table import BlockCopy, BlockId
from prefold.engine.fresh_pages import map_pages
from prefold.engine.quantization import SCALE_DTYPE, scale_itemsize
from prefold.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGeometry:
    """How the rows of one plane follow from slots; equal for most layers of a model.

    Attributes:
        num_heads: Key-value heads.
        size: Numbers of one head's key or value.
        rows_per_head: Rows of ``unit`` numbers that make one key or value.
    """

    num_heads: int
    size: int
    rows_per_head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPlane:
    """One layer's keys, or its values, over all blocks.

    Attributes:
        offset: Where in a block its numbers begin.
        rows: The store's rows from this plane's first on; indexed by ``KvStore.rows_of``,
            in token-major order.
        view: The same memory as ``[num_blocks + 1, block_size, heads, size]``.
        scale_offset: Where in a block its scales begin, counted in numbers; None if it has
            none.
        scales: They, ``[num_blocks + 1, block_size, heads]``.
    """

    geometry: RowGeometry
    offset: int
    rows: torch.Tensor
    view: torch.Tensor
    scale_offset: int | None = None
    scales: torch.Tensor | None = None


class KvStore:
    """Keys and values of all blocks; owned by the runner, changed only in its thread.

    On the CPU the memory is reserved at once and taken when a block is first written.

    Raises:
        MemoryError: There is not so much memory.
    """

    __slots__ = ("_flat", "_planes", "_rows_per_block", "layout", "num_blocks")

    def __init__(
        self, layout: KvLayout, num_blocks: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        if dtype.itemsize != layout.itemsize:
            raise ConfigError(
                f"the layout counts {layout.itemsize} bytes a number,"
                f" {dtype} has {dtype.itemsize}"
            )
        if scale_itemsize(dtype) != layout.scale_itemsize:
            raise ConfigError(
                f"the layout has scales of {layout.scale_itemsize} bytes,"
                f" {dtype} has {scale_itemsize(dtype)}"
            )
        self.layout = layout
        self.num_blocks = num_blocks
        block_elements = layout.block_bytes // layout.itemsize
        sizes = (s for x in layout.layers for s in (x.key_size, x.value_size))
        # Scales may leave a block that is no multiple of the sizes.
        unit = math.gcd(block_elements, *sizes)
        self._rows_per_block = block_elements // unit
        # Zeroed: a slot nobody wrote is read (and masked) where a table ends inside
        # a partition, and a NaN there would outlive the mask.
        num_rows = (num_blocks + 1) * self._rows_per_block
        self._flat = _zeros(num_rows * unit, dtype, device).view(num_rows, unit)
        self._planes: list[tuple[KvPlane, KvPlane]] = []
        offset, scale_offset = 0, layout.scale_offset
        is_turned = layout.order is KvOrder.DIMENSION_MAJOR_KEYS
        for shape in layout.layers:
            planes = []
            for size, is_key in ((shape.key_size, True), (shape.value_size, False)):
                heads = shape.num_kv_heads
                strides = (heads * size, size, 1)
                if is_turned:
                    own = (1, layout.block_size) if is_key else (size, 1)
                    strides = (own[0], layout.block_size * size, own[1])
                plane = self._plane(offset, heads, size, strides)
                if layout.scale_itemsize:
                    plane = self._with_scales(plane, scale_offset)
                planes.append(plane)
                offset += layout.block_size * heads * size
                scale_offset += layout.block_size * heads * layout.scale_itemsize
            self._planes.append((planes[0], planes[1]))

    @property
    def scratch_block(self) -> BlockId:
        """The block that padding rows write to; in no table."""
        return BlockId(self.num_blocks)

    @property
    def numbers(self) -> torch.Tensor:
        """All blocks one after another, in one axis, no copy."""
        return self._flat.view(-1)

    @property
    def block_numbers(self) -> int:
        """Numbers in a block, over all layers."""
        return self._rows_per_block * self._flat.shape[1]

    @property
    def device(self) -> torch.device:
        return self._flat.device

    @property
    def dtype(self) -> torch.dtype:
        return self._flat.dtype

    def keys(self, layer: int) -> KvPlane:
        return self._planes[layer][0]

    def values(self, layer: int) -> KvPlane:
        return self._planes[layer][1]

    def key_view(self, layer: int) -> torch.Tensor:
        """One layer's keys, ``[num_blocks + 1, block_size, heads, size]``, no copy."""
        return self.keys(layer).view

    def value_view(self, layer: int) -> torch.Tensor:
        """One layer's values, ``[num_blocks + 1, block_size, heads, size]``, no copy."""
        return self.values(layer).view

    def rows_of(self, slots: torch.Tensor, geometry: RowGeometry) -> torch.Tensor:
        """Return the row indices of slots, ``[*slots.shape, heads, rows_per_head]``.

        A slot is ``block id * block_size + position in the block``.
        """
        block_size = self.layout.block_size
        width = geometry.rows_per_head
        blocks = torch.div(slots, block_size, rounding_mode="floor")
        first = blocks * self._rows_per_block + (slots % block_size) * (
            geometry.num_heads * width
        )
        inner = torch.arange(geometry.num_heads * width, device=slots.device)
        return first[..., None, None] + inner.view(geometry.num_heads, width)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out copies in order, all layers; later ones see earlier ones."""
        for copy in copies:
            for planes in self._planes:
                for plane in planes:
                    source = plane.view[copy.source, : copy.num_tokens]
                    plane.view[copy.target, : copy.num_tokens] = source
                    if plane.scales is not None:
                        scales = plane.scales[copy.source, : copy.num_tokens]
                        plane.scales[copy.target, : copy.num_tokens] = scales

    def block_bytes(self, block_id: BlockId) -> bytes:
        """Return everything a block holds."""
        start = block_id * self._rows_per_block
        rows = self._flat[start : start + self._rows_per_block]
        return rows.cpu().contiguous().view(torch.uint8).numpy().tobytes()

    def _plane(
        self, offset: int, num_heads: int, size: int, strides: tuple[int, int, int]
    ) -> KvPlane:
        unit = self._flat.shape[1]
        view = self._flat.as_strided(
            (self.num_blocks + 1, self.layout.block_size, num_heads, size),
            (self.block_numbers, *strides),
            offset,
        )
        geometry = RowGeometry(num_heads=num_heads, size=size, rows_per_head=size // unit)
        rows = self._flat[offset // unit :]
        return KvPlane(geometry=geometry, offset=offset, rows=rows, view=view)

    def _with_scales(self, plane: KvPlane, scale_offset: int) -> KvPlane:
        """Return a plane with the scales that begin at so many bytes of a block."""
        block_size, heads = self.layout.block_size, plane.geometry.num_heads
        # A number is one byte, and both the store and its scales begin at a multiple of a
        # scale's size.
        scales = self.numbers.view(SCALE_DTYPE).as_strided(
            (self.num_blocks + 1, block_size, heads),
            (self.block_numbers // SCALE_DTYPE.itemsize, 1, block_size),
            scale_offset // SCALE_DTYPE.itemsize,
        )
        return replace(plane, scale_offset=scale_offset, scales=scales)


def _zeros(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    try:
        if device.type != "cpu":
            return torch.zeros(size, dtype=dtype, device=device)
        # torch writes the zeros it gives, which takes seconds for gigabytes.
        return torch.frombuffer(map_pages(size * dtype.itemsize), dtype=dtype)
    except (RuntimeError, MemoryError) as error:
        raise MemoryError(f"no {size * dtype.itemsize} bytes for KV") from error
