"""Row layers: gives a model layers whose results depend on a row alone.

On the CPU, activations and linear layers are replaced by the compiled ones where they were
built, and otherwise by torch's in a form that is the same for every row of a padded batch.
What cannot be replaced is left as it is and named in one line of the log; whether rows
keep their bits is then the row probe's to say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import nn
from transformers import PreTrainedModel

from prefold.engine import experts, linear
from prefold.engine.activations import replace_activations
from prefold.engine.fresh_pages import Slabs
from prefold.engine.linear import order_of, replace_linears
from prefold.engine.native import HAS_KERNELS
from prefold.engine.panels import (
    PACKABLE_DTYPES,
    PanelMaker,
    describe_panels,
    wants_panels,
)

if HAS_KERNELS:
    from prefold.engine.fused_mlp import fuse_mlp, is_gated_mlp
    from prefold.engine.fused_stack import fuse_stack, is_fused_throughout
    from prefold.engine.layer_fusion import fuse_layer, is_decoder_layer
    from prefold.engine.packed_experts import pack_experts
    from prefold.engine.packed_linear import PackedLinear
    from prefold.engine.packing import pack_linears
    from prefold.engine.panel_weight import pack_routers
    from prefold.engine.row_norm import replace_norms


_LOG = logging.getLogger(__name__)

#: Layers that the line of the log names.
_MOST_NAMES = 8


def replace_layers(model: PreTrainedModel) -> None:
    """Replace a model's activations and linear layers, in place.

    Raises:
        ConfigError: The environment asks for an implementation that is not there.
    """
    if model.device.type != "cpu":
        return
    has_panels = wants_panels(model.device)
    is_packed = has_panels and model.dtype in PACKABLE_DTYPES
    replace_activations(model, is_native=is_packed)
    if is_packed:
        maker = PanelMaker(Slabs())
        left = pack_experts(model, maker)
        pack_routers(model, maker)
        _report({**left, **pack_linears(model, maker)})
        replace_norms(model)
        fuse(model)
    else:
        if has_panels:
            pack_routers(model, PanelMaker(Slabs()))
        replace_linears(model)


def fuse(model: nn.Module) -> Mapping[str, str]:
    """Fuse a model's MLPs, decoder layers and stack of layers, in place, where they can be.

    Returns:
        Those that are left as they are, and why; also named in a line of the log.
    """
    left: dict[str, str] = {}
    modules = list(model.named_modules())
    for fits, join in (
        (is_gated_mlp, fuse_mlp),
        (is_decoder_layer, fuse_layer),
        (is_fused_throughout, fuse_stack),
    ):
        for name, module in modules:
            obstacle = join(module) if fits(module) else None
            if obstacle is not None:
                left[name] = obstacle
    if left:
        _LOG.info("modules that run part by part: %s", _named(left))
    return left


def describe_linear(model: nn.Module) -> str:
    """Return the name in the numerics of how a model's linear layers multiply."""
    layers = list(model.modules())
    is_packed = HAS_KERNELS and any(isinstance(m, PackedLinear) for m in layers)
    is_plain = any(isinstance(m, nn.Linear) for m in layers)
    names = [describe_panels()] * is_packed + [order_of(model)] * is_plain
    return "+".join(names) or linear.PLAIN


def describe_experts(model: nn.Module) -> str:
    """Return the name in the numerics of how a model runs its experts."""
    modules = [m for m in model.modules() if hasattr(m, experts.GATE)]
    is_packed = [hasattr(m, experts.PACKED) for m in modules]
    names = [describe_panels()] * any(is_packed)
    names += [experts.IMPLEMENTATION] * (not all(is_packed) or not modules)
    return "+".join(names)


def find_uneven(model: nn.Module) -> str | None:
    """Name a module whose rows may depend on how many there are, by what it is made of.

    Returns:
        The first module with a matrix of weights that torch multiplies by; None if there
        is none, so that rows need no padding unless a probe finds otherwise.
    """
    if not HAS_KERNELS:
        return "the model"
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear | nn.Embedding):
            continue
        if hasattr(module, experts.PACKED):
            continue
        matrices = [p for p in module.parameters(recurse=False) if p.ndim > 1]
        if isinstance(module, nn.Linear) or matrices:
            return name or "the model"
    return None


def _report(left: Mapping[str, str]) -> None:
    if left:
        _LOG.warning("layers that are left as they are: %s", _named(left))


def _named(left: Mapping[str, str]) -> str:
    named = [f"{name} ({why})" for name, why in list(left.items())[:_MOST_NAMES]]
    if len(left) > len(named):
        named.append(f"{len(left) - len(named)} more")
    return ", ".join(named)
