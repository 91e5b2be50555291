"""Fused MLP: gate, up, activation, product and down projection in one compiled call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from prefold.engine import _kernels
from prefold.engine.activations import NativeActivation
from prefold.engine.fusion import (
    OTHER_BITS,
    Intactness,
    find_obstacles,
    plain_forward,
    set_forward,
)
from prefold.engine.packed_linear import PackedLinear

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_PARTS: dict[str, type] = {
    **dict.fromkeys(_PROJECTIONS, PackedLinear),
    "act_fn": NativeActivation,
}

#: Rows of the trial.
_TRIAL_ROWS = 5


class FusedMlp:
    """Takes the place of an MLP's ``forward``.

    Args:
        module: Whose parts are packed projections and a compiled activation.

    Attributes:
        native: The compiled call.
        plain: The module's own ``forward``.
    """

    __slots__ = ("_dtype", "_intactness", "_outputs", "_width", "native", "plain")

    def __init__(self, module: nn.Module) -> None:
        gate, up, down = (module.get_submodule(name) for name in _PROJECTIONS)
        activation = module.get_submodule("act_fn")
        if not (
            isinstance(gate, PackedLinear)
            and isinstance(up, PackedLinear)
            and isinstance(down, PackedLinear)
            and isinstance(activation, NativeActivation)
        ):
            raise TypeError("an MLP is fused only when its parts are compiled")
        self._width, self._outputs = gate.in_features, down.out_features
        self._dtype = gate.panels.dtype
        self._intactness = Intactness(module, tuple(_PARTS))
        self.plain: Callable[..., object] = plain_forward(module)
        self.native = _kernels.Mlp(
            gate=gate.native,
            up=up.native,
            down=down.native,
            function=activation.function,
        )

    def __call__(self, *arguments: object, **keywords: object) -> object:
        """Return what the module's class returns, with the same bits."""
        if len(arguments) == 1 and not keywords:
            states = arguments[0]
            if isinstance(states, torch.Tensor) and self.fits(states):
                return self.run(states)
        return self.plain(*arguments, **keywords)

    def fits(self, states: torch.Tensor) -> bool:
        """Tell whether states can be computed in one call, and the parts are there."""
        return (
            states.dtype is self._dtype
            and states.shape[-1] == self._width
            and self._intactness.holds()
        )

    def run(self, states: torch.Tensor) -> torch.Tensor:
        """Return ``[..., outputs]`` for ``[..., width]``."""
        states = states.contiguous()
        out = states.new_empty((*states.shape[:-1], self._outputs))
        self.native.run(states, out, num_threads=torch.get_num_threads())
        return out


@torch.inference_mode()
def fuse_mlp(module: nn.Module) -> str | None:
    """Fuse an MLP in place; return why it is left as it is, or None.

    Its parts are known by their names, and tried: a call must give the module's own bits.
    """
    obstacle = next(find_obstacles(module, _PARTS), None)
    if obstacle is not None:
        return obstacle
    fused = FusedMlp(module)
    gate = module.get_submodule("gate_proj")
    generator = torch.Generator().manual_seed(0)
    # What modules hold are tensors or modules, mypy believes; these are numbers.
    rows = torch.randn(1, _TRIAL_ROWS, int(gate.in_features), generator=generator)  # type: ignore[arg-type]
    states = rows.to(gate.panels.dtype)  # type: ignore[arg-type]
    wanted = fused.plain(states)
    if not isinstance(wanted, torch.Tensor) or not torch.equal(fused.run(states), wanted):
        return OTHER_BITS
    set_forward(module, fused)
    return None


def fused_mlp_of(module: nn.Module) -> FusedMlp | None:
    """Return the fused call that a module has been given, if it has one."""
    forward = vars(module).get("forward")
    return forward if isinstance(forward, FusedMlp) else None


def is_gated_mlp(module: nn.Module) -> bool:
    """Tell whether a module's parts have the names of a gated MLP's."""
    return {name for name, _ in module.named_children()} == set(_PARTS)
