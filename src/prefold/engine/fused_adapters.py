"""Fused adapters: what adapters add within a model's fused layers, which stay fused.

A hook would make a layer step aside, and its parts run one by one in Python: on few rows
that takes as long as the weights do.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from torch import nn

from prefold.engine import _kernels
from prefold.engine.adapted_rows import AdaptedRows
from prefold.engine.adapter import Adapter
from prefold.engine.fused_layer import ADAPTED_PARTS, FusedLayer, fused_layer_of
from prefold.engine.low_rank import LowRank
from prefold.engine.packed_linear import PackedLinear

_Entry = tuple[_kernels.Panels, _kernels.Panels, float]


class FusedAdapters:
    """Hands the adapted rows of steps to a model's fused layers. One thread."""

    __slots__ = ("_layers", "_made")

    def __init__(self, model: nn.Module) -> None:
        found = ((name, fused_layer_of(each)) for name, each in model.named_modules())
        self._layers: dict[str, FusedLayer] = {
            name: layer for name, layer in found if layer is not None
        }
        # Of the adapters of the last step that had any.
        self._made: dict[Adapter, dict[str, _kernels.LayerAdapter]] = {}

    def give(self, rows: tuple[AdaptedRows, ...]) -> AbstractSet[str]:
        """Let rows pass their adapters; return the linear layers that this sees to."""
        self._made = {
            adapter: self._made.get(adapter) or self._make(adapter)
            for adapter in {each.adapter for each in rows}
        }
        seen_to: set[str] = set()
        for name, layer in self._layers.items():
            if layer.takes_adapters:
                layer.adapted = [
                    (each.start, each.end, self._made[each.adapter][name])
                    for each in rows
                    if name in self._made[each.adapter]
                ]
                seen_to.update(f"{name}.{part}" for part in ADAPTED_PARTS)
        return seen_to

    def take_back(self) -> None:
        """Let no row pass an adapter any more."""
        for layer in self._layers.values():
            layer.adapted = []

    def forget(self) -> None:
        """Keep nothing of adapters, which may be gone before a step has one again."""
        self._made = {}

    def _make(self, adapter: Adapter) -> dict[str, _kernels.LayerAdapter]:
        made = {}
        for name in self._layers:
            entries = [
                _entry(adapter.layers.get(f"{name}.{part}")) for part in ADAPTED_PARTS
            ]
            if any(entries):
                made[name] = _kernels.LayerAdapter(entries)
        return made


def _entry(low_rank: LowRank | None) -> _Entry | None:
    if low_rank is None:
        return None
    down, up, scale = low_rank.layers
    if not (isinstance(down, PackedLinear) and isinstance(up, PackedLinear)):
        # Beside a fused layer's panels, of the same device and type, there are panels.
        raise TypeError("an adapter of a fused layer has no panels")
    return down.native, up.native, scale
