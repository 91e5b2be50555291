"""KV layout: what one block holds, in shapes and bytes.

A block holds the keys and values of ``block_size`` consecutive token positions
for *all* layers, and its bytes are contiguous over the layers, so that a block
can be moved as one piece.

Whole numbers mean nothing without the factors that turn them back, so they are in the
same block, behind everything else::

    keys 0 | values 0 | keys 1 | values 1 | .. | scales of keys 0 | of values 0 | ..
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prefold.errors import ConfigError


class KvOrder(Enum):
    """The order of numbers in one layer's part of a block.

    The value is the layout version, which is part of every fingerprint: whoever changes an
    order gives it a number that was never used.
    """

    #: Keys ``[block_size, heads, key_size]``, then values ``[block_size, heads, size]``.
    TOKEN_MAJOR = 1
    #: Keys ``[heads, key_size, block_size]``, then values ``[heads, block_size, size]``.
    DIMENSION_MAJOR_KEYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """One layer's share of a token: ``num_kv_heads`` x (``key_size`` + ``value_size``)."""

    num_kv_heads: int
    key_size: int
    value_size: int

    @property
    def token_elements(self) -> int:
        return self.num_kv_heads * (self.key_size + self.value_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Shape of a block over all layers.

    Attributes:
        block_size: Token positions in a block.
        layers: One shape per layer that keeps KV, in the model's order.
        itemsize: Bytes of one stored number.
        order: Of the numbers in a layer's part.
        scale_itemsize: Bytes of the scale that each head's key and each head's value of a
            token has, ``[heads, block_size]`` whatever the order; 0 where there is none.

    Raises:
        ConfigError: A size is below one, or there is no layer.
    """

    block_size: int
    layers: tuple[LayerShape, ...]
    itemsize: int
    order: KvOrder = KvOrder.TOKEN_MAJOR
    scale_itemsize: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {self.block_size}")
        if not self.layers:
            raise ConfigError("a KV layout needs at least one layer")
        if self.itemsize < 1:
            raise ConfigError(f"itemsize must be at least 1 byte, got {self.itemsize}")
        if self.scale_itemsize < 0:
            raise ConfigError(f"scale_itemsize is negative: {self.scale_itemsize}")

    @property
    def token_bytes(self) -> int:
        """Bytes one token position holds over all layers, scales included."""
        numbers = self.itemsize * sum(layer.token_elements for layer in self.layers)
        return numbers + self.scale_itemsize * self._token_scales

    @property
    def scale_offset(self) -> int:
        """Where in a block the scales begin, in bytes: a multiple of a scale's."""
        numbers = sum(layer.token_elements for layer in self.layers)
        num_bytes = self.itemsize * numbers * self.block_size
        return num_bytes + -num_bytes % max(self.scale_itemsize, 1)

    @property
    def block_bytes(self) -> int:
        """Bytes one block holds over all layers, scales included."""
        scales = self._token_scales * self.block_size
        return self.scale_offset + self.scale_itemsize * scales

    @property
    def _token_scales(self) -> int:
        return 2 * sum(layer.num_kv_heads for layer in self.layers)
