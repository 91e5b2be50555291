"""Packing: a model's linear layers become packed ones, as far as they can.

The weights of one layer after the other are packed and given up, so a model needs hardly
more memory meanwhile. An embedding that shares its weights with a head stays and looks
its rows up in the head's panels. What cannot be packed is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from prefold.engine.linear import has_hooks
from prefold.engine.packed_linear import PackedLinear
from prefold.engine.panel_weight import show_panels
from prefold.engine.panels import PanelMaker, obstacle_in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a module hangs, and the module that hung there at first."""

    parent: nn.Module
    name: str
    full_name: str
    child: nn.Module


@torch.no_grad()
def pack_linears(model: nn.Module, maker: PanelMaker) -> Mapping[str, str]:
    """Replace a model's linear layers in place, and let embeddings share their panels.

    Layers that are replaced lose their parameters at once.

    Returns:
        The layers that are left as they are, and why.
    """
    places = [
        _Place(
            parent=parent, name=name, full_name=f"{prefix}.{name}".strip("."), child=child
        )
        for prefix, parent in model.named_modules()
        for name, child in parent.named_children()
    ]
    packable = _find_packable(model)
    panels: dict[int, nn.Parameter] = {}
    # A module that is used in two places stays one. The places keep the old modules, so
    # that no new one gets the id of one that is gone.
    replaced: dict[int, nn.Module] = {}
    left: dict[str, str] = {}
    for place in places:
        child = place.child
        if id(child) in packable:
            if id(child) not in replaced:
                replaced[id(child)] = _pack(child, maker, panels)
            place.parent.register_module(place.name, replaced[id(child)])
        elif isinstance(child, nn.Linear):
            left[place.full_name] = (
                _obstacle_of(child) or "another module needs its weights as they are"
            )
    return left


def _find_packable(model: nn.Module) -> set[int]:
    """Return the ids of modules whose weights may be given up: layers, and embeddings."""
    candidates = [m for m in model.modules() if _obstacle_of(m) is None]
    ids = {id(m) for m in candidates}
    needed = {
        id(parameter)
        for module in model.modules()
        if id(module) not in ids
        for parameter in module.parameters(recurse=False)
    }
    free = [m for m in candidates if id(m.weight) not in needed]
    shared = {id(m.weight) for m in free if not isinstance(m, nn.Embedding)}
    return {id(m) for m in free if id(m.weight) in shared}


def _obstacle_of(module: nn.Module) -> str | None:
    """Say why a module cannot be packed, whatever else has its weights."""
    kind = type(module)
    if isinstance(module, nn.Embedding):
        # It keeps its class and its hooks.
        return None if module.max_norm is None else "it changes its weights"
    if kind not in (nn.Linear, Conv1D):
        return f"it is a {kind.__name__}"
    if has_hooks(module):
        return "it has hooks"
    weight, bias = module.weight, module.bias
    if not isinstance(weight, torch.Tensor):
        return "it has no weights"
    obstacle = obstacle_in(weight)
    if obstacle is None and isinstance(bias, torch.Tensor):
        obstacle = obstacle_in(bias)
    return obstacle


def _pack(
    module: nn.Module, maker: PanelMaker, panels: dict[int, nn.Parameter]
) -> nn.Module:
    """Return what a module becomes; the module loses its parameters."""
    weight = module.get_parameter("weight")
    # Conv1D keeps its weights the other way round.
    matrix = weight.t() if isinstance(module, Conv1D) else weight
    if id(weight) not in panels:
        panels[id(weight)] = maker.pack(matrix)
    own, outputs = panels[id(weight)], len(matrix)
    if isinstance(module, nn.Embedding):
        show_panels(module, PackedLinear(maker, own, outputs, None))
        return module
    bias = dict(module.named_parameters(recurse=False)).get("bias")
    for name in [name for name, _ in module.named_parameters(recurse=False)]:
        module.register_parameter(name, None)
    return PackedLinear(maker, own, outputs, bias).train(mode=module.training)
