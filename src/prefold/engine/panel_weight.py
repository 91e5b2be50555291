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

    ``linear`` multiplies by the layer and ``embedding`` looks up in it, also after the
    weights were asked for in float32; whatever else is done with it is done with a copy
    that is made for that. Changing it in place raises ``RuntimeError``.

    Attributes:
        layer: Without a bias.
        shown: A plain tensor of the same type and shape, all of one number.
    """

    layer: PackedLinear
    shown: torch.Tensor

    @classmethod
    def of(cls, layer: PackedLinear, dtype: torch.dtype | None = None) -> PanelWeight:
        """Return the weights of a layer, shown in a type, or in their own."""
        zero = layer.panels.new_zeros((), dtype=dtype)
        shown = zero.expand(layer.out_features, layer.in_features)
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
        if func in _CONVERSIONS and _is_widening(args, keywords):
            # Routers that weigh in float32 ask for their weights in it, step by step. The
            # layer widens them as it reads, to the same numbers.
            return cls.of(args[0].layer, torch.float32)  # type: ignore[attr-defined]
        if getattr(func, "__name__", "") == "__get__":
            found = func(*(_shown(each) for each in args))
            if not isinstance(found, torch.Tensor):
                return found
        return func(
            *(_unpacked(each) for each in args),
            **{name: _unpacked(each) for name, each in keywords.items()},
        )


#: Of states that are multiplied by panels, perhaps as float32.
_MULTIPLIED_DTYPES = (*PACKABLE_DTYPES, torch.float16)

#: Of a tensor to another type; with the type as their only argument, or without any.
_CONVERSIONS = (torch.Tensor.type, torch.Tensor.to, torch.Tensor.float)


def pack_routers(model: nn.Module, maker: PanelMaker) -> int:
    """Let a model's routers multiply by panels, in place; return how many there are.

    Those of float16 get panels of float32, which hold the same numbers. A router has few
    outputs, for which torch's products of float16 depend on how many rows there are.
    """
    found = [module for module in model.modules() if _is_router(module)]
    for module in found:
        weight = module.get_parameter("weight")
        layer = PackedLinear(maker, maker.pack(_packable(weight)), len(weight), None)
        # The panels stand for the weights in the model's state.
        module.register_module("packed", layer)
        show_panels(module, layer, weight.dtype)
    return len(found)


def show_panels(
    module: nn.Module, layer: PackedLinear, dtype: torch.dtype | None = None
) -> None:
    """Let a module's weights be those of a layer, in place of its parameter."""
    del module.weight
    module.weight = PanelWeight.of(layer, dtype)


def _packable(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.detach().float() if numbers.dtype is torch.float16 else numbers


def _is_router(module: nn.Module) -> bool:
    weight = dict(module.named_parameters(recurse=False)).get("weight")
    return (
        type(module).__name__.endswith("Router")
        and weight is not None
        and weight.ndim == 2
        and obstacle_in(_packable(weight)) is None
        and not has_hooks(module)
    )


def _is_widening(args: Sequence[object], keywords: Mapping[str, object]) -> bool:
    """Tell whether a conversion's arguments are packed weights and float32, or nothing."""
    first, *rest = args
    wanted = [*rest, *keywords.values()]
    return isinstance(first, PanelWeight) and wanted in ([], [torch.float32])


def _shown(argument: Any) -> Any:
    return argument.shown if isinstance(argument, PanelWeight) else argument


def _unpacked(argument: Any) -> Any:
    if type(argument) in (list, tuple):
        return type(argument)(_unpacked(each) for each in argument)
    if not isinstance(argument, PanelWeight):
        return argument
    return argument.layer.weight.to(argument.shown.dtype)


def _multiply(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    if isinstance(weight, PanelWeight) and states.dtype in _MULTIPLIED_DTYPES:
        result: torch.Tensor = weight.layer(_packable(states)).to(states.dtype)
        return result if bias is None else result + bias
    return nn.functional.linear(*map(_unpacked, (states, weight, bias)))


def _look_up(ids: torch.Tensor, weight: PanelWeight, **_training: object) -> torch.Tensor:
    # The keywords matter for training, or were refused before the weights were packed.
    return weight.layer.look_up(ids)
