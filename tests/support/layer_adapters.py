"""Adapters with random weights for the linear layers of a small fused model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from prefold.engine.adapter import Adapter, AdapterHost
from prefold.engine.adapter_loading import build_adapter
from prefold.engine.adapter_targets import LinearShape
from prefold.engine.adapter_weights import MatrixPair
from prefold.engine.fused_layer import ADAPTED_PARTS
from prefold.engine.loading import LoadedModel
from prefold.engine.packed_linear import PackedLinear
from support.fused_models import layers_of


def shapes_of(loaded: LoadedModel, parts: tuple[str, ...]) -> Mapping[str, LinearShape]:
    """Return the shapes of some parts of every layer, by their names in the model."""
    shapes = {}
    for number, layer in enumerate(layers_of(loaded)):
        for part in parts:
            linear = layer.get_submodule(part)
            assert isinstance(linear, PackedLinear)
            shapes[f"model.layers.{number}.{part}"] = LinearShape(
                in_features=linear.in_features, out_features=linear.out_features
            )
    return shapes


def make_adapter(
    loaded: LoadedModel, seed: int, *, rank: int, parts: tuple[str, ...] = ADAPTED_PARTS
) -> Adapter:
    """Return an adapter of some parts of every layer."""
    generator = torch.Generator().manual_seed(seed)
    shapes = shapes_of(loaded, parts)
    pairs = {
        name: MatrixPair(
            down=torch.randn(rank, shape.in_features, generator=generator) / 8,
            up=torch.randn(shape.out_features, rank, generator=generator) / 8,
            scale=0.75,
        )
        for name, shape in shapes.items()
    }
    host = AdapterHost(linears=shapes, dtype=loaded.dtype, device=torch.device("cpu"))
    return build_adapter(pairs, None, host)
