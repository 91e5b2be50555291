"""Panel weight: stands for weights that are there as panels only.

For modules that do more than a linear layer does, and keep their own class: a mixture's
router, which multiplies, weighs and chooses; an embedding whose weights a head shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prefold.engine.linear import has_hooks
from prefold.engine.packed_linear import PackedLinear
from prefold.engine.panels import PACKABLE_DTYPES, PanelMaker, obstacle_in


class PanelWeight(torch.Tensor):
    """Weights ``[outputs, inputs]`` of a packed layer, without memory of their own.

    ``linear`` multiplies by the layer and ``embedding`` looks up in it; whatever else is
    done with it is done with a copy that is made for that. Changing it in place raises
    ``RuntimeError``.

    Attributes:
        layer: Without a bias.
        shown: A plain tensor of the same type and shape, all of one number.
    """

    layer: PackedLinear
    shown: torch.Tensor

    @classmethod
    def of(cls, layer: PackedLinear) -> PanelWeight:
        """Return the weights of a layer."""
        shown = layer.panels.new_zeros(()).expand(layer.out_features, layer.in_features)
        weight = shown.as_subclass(cls)
        weight.layer = layer
        weight.shown = shown
        return weight

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        del types
        keywords = kwargs or {}
        # torch passes on whatever the caller gave; only the calls below are answered here.
        if func is nn.functional.linear:
            return _multiply(*args, **keywords)  # type: ignore[arg-type]
        if func is nn.functional.embedding:
            return _look_up(*args, **keywords)  # type: ignore[arg-type]
        if getattr(func, "__name__", "") == "__get__":
            found = func(*(_shown(each) for each in args))
            if not isinstance(found, torch.Tensor):
                return found
        return func(
            *(_unpacked(each) for each in args),
            **{name: _unpacked(each) for name, each in keywords.items()},
        )


def pack_routers(model: nn.Module, maker: PanelMaker) -> int:
    """Let a model's routers multiply by panels, in place; return how many there are."""
    found = [module for module in model.modules() if _is_router(module)]
    for module in found:
        weight = module.get_parameter("weight")
        layer = PackedLinear(maker, maker.pack(weight), len(weight), None)
        # The panels stand for the weights in the model's state.
        module.register_module("packed", layer)
        show_panels(module, layer)
    return len(found)


def show_panels(module: nn.Module, layer: PackedLinear) -> None:
    """Let a module's weights be those of a layer, in place of its parameter."""
    del module.weight
    module.weight = PanelWeight.of(layer)


def _is_router(module: nn.Module) -> bool:
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    return (
        type(module).__name__.endswith("Router")
        and weight is not None
        and weight.ndim == 2
        and obstacle_in(weight) is None
        and not has_hooks(module)
    )


def _shown(argument: Any) -> Any:
    return argument.shown if isinstance(argument, PanelWeight) else argument


def _unpacked(argument: Any) -> Any:
    if type(argument) in (list, tuple):
        return type(argument)(_unpacked(each) for each in argument)
    return argument.layer.weight if isinstance(argument, PanelWeight) else argument


def _multiply(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if isinstance(weight, PanelWeight) and states.dtype in PACKABLE_DTYPES:
        result: torch.Tensor = weight.layer(states)
        return result if bias is None else result + bias
    return nn.functional.linear(*map(_unpacked, (states, weight, bias)))


def _look_up(ids: torch.Tensor, weight: PanelWeight, **_training: object) -> torch.Tensor:
    # The keywords matter for training, or were refused before the weights were packed.
    return weight.layer.look_up(ids)
