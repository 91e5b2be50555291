"""KV layout: what one block holds, in shapes and bytes.

A block holds the keys and values of ``block_size`` consecutive token positions
for *all* layers, and its bytes are contiguous over the layers, so that a block
can be moved as one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefold.errors import ConfigError

#: Part of every fingerprint. Raise it whenever the order of bytes in a block changes.
LAYOUT_VERSION = 1


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

    Raises:
        ConfigError: A size is below one, or there is no layer.
    """

    block_size: int
    layers: tuple[LayerShape, ...]
    itemsize: int

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {self.block_size}")
        if not self.layers:
            raise ConfigError("a KV layout needs at least one layer")
        if self.itemsize < 1:
            raise ConfigError(f"itemsize must be at least 1 byte, got {self.itemsize}")

    @property
    def token_bytes(self) -> int:
        """Bytes one token position holds over all layers."""
        return self.itemsize * sum(layer.token_elements for layer in self.layers)

    @property
    def block_bytes(self) -> int:
        """Bytes one block holds over all layers."""
        return self.token_bytes * self.block_size
