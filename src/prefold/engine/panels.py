"""Panels: a matrix of weights in the order that the compiled linear layer reads it.

::

    weight   [outputs, inputs]
    panels   [outputs / 16, inputs, 16]     zeros fill up the last one

A panel's 16 outputs of one input lie side by side, so that one load serves many rows.
In bfloat16, output 8 + j of a panel follows output j, which widens both at once.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from prefold.engine.fresh_pages import Slabs
from prefold.engine.native import HAS_KERNELS, NATIVE, kernel_name
from prefold.errors import ConfigError

if HAS_KERNELS:
    from prefold.engine import _kernels

#: Part of the numerics. Raise it whenever the layer's results may get other bits.
LINEAR_VERSION = 2

#: Types of weights that there are panels of; rows may be of either.
PACKABLE_DTYPES = (torch.float32, torch.bfloat16)

#: What to do without packed layers is called in the environment.
TORCH = "torch"

#: Chooses between packed and torch's linear layers, for tests and for comparing them.
_LINEAR_VARIABLE = "PREFOLD_LINEAR"


def wants_panels(device: torch.device) -> bool:
    """Tell whether a model on this device is to get packed layers.

    Raises:
        ConfigError: ``PREFOLD_LINEAR`` or ``PREFOLD_KERNEL`` names what is not there.
    """
    wanted = os.environ.get(_LINEAR_VARIABLE) or None
    if wanted not in (None, TORCH, NATIVE):
        raise ConfigError(
            f"{_LINEAR_VARIABLE} must be {NATIVE!r} or {TORCH!r}, got {wanted!r}"
        )
    if wanted == NATIVE and not HAS_KERNELS:
        raise ConfigError(
            "the native linear layers were not built: install a C++ compiler, then "
            "Prefold again"
        )
    if wanted == TORCH or not HAS_KERNELS or device.type != "cpu":
        return False
    kernel_name()
    return True


def describe_panels() -> str:
    """Return the packed layer's name in the numerics: all that its bits depend on."""
    return f"{NATIVE}-{kernel_name()}-{LINEAR_VERSION}"


def obstacle_in(weight: torch.Tensor) -> str | None:
    """Say why weights cannot be packed, or return None."""
    if type(weight) not in (nn.Parameter, torch.Tensor):
        return f"its weights are of type {type(weight).__name__}"
    kind = str(weight.dtype).removeprefix("torch.")
    obstacles = {
        "its weights are not loaded": weight.is_meta,
        "its weights are sparse": weight.layout is not torch.strided,
        f"its weights are {kind}": weight.dtype not in PACKABLE_DTYPES,
        "its weights are on another device": weight.device.type != "cpu",
        "it has no weights": weight.numel() == 0,
    }
    found = [obstacle for obstacle, is_there in obstacles.items() if is_there]
    if not found and not weight.is_contiguous():
        # Sparse ones cannot be asked.
        found = ["its weights are not contiguous"]
    return found[0] if found else None


class PanelMaker:
    """Makes panels for one model; its layers share scratch memory.

    Args:
        slabs: Where the panels go; each into memory of its own if None.

    Raises:
        ConfigError: ``PREFOLD_KERNEL`` names no kernel of this machine.
    """

    __slots__ = ("_kernel", "_slabs", "_workspace")

    def __init__(self, slabs: Slabs | None = None) -> None:
        self._kernel = kernel_name()
        self._slabs = slabs
        self._workspace = _kernels.LinearWorkspace()

    def pack(self, weight: torch.Tensor) -> nn.Parameter:
        """Return the panels of ``[outputs, inputs]``, in any order of its numbers."""
        stack = self.pack_stack(weight[None])
        return nn.Parameter(stack[0], requires_grad=False)

    def pack_stack(self, weights: torch.Tensor) -> nn.Parameter:
        """Return the panels of several matrices of one shape, one after the other."""
        num, outputs, inputs = weights.shape
        num_panels = -(-outputs // _kernels.PANEL_OUTPUTS)
        shape = (num, num_panels, inputs, _kernels.PANEL_OUTPUTS)
        empty = torch.empty if self._slabs is None else self._slabs.empty
        stack = empty(shape, dtype=weights.dtype)
        for panels, weight in zip(stack, weights.detach(), strict=True):
            self.open(panels, outputs).pack(weight, num_threads=torch.get_num_threads())
        return nn.Parameter(stack, requires_grad=False)

    def open(
        self, panels: torch.Tensor, outputs: int, bias: torch.Tensor | None = None
    ) -> _kernels.Panels:
        """Return what computes with panels.

        Args:
            panels: Kept alive by the result.
            outputs: How many of the panels' outputs there are.
            bias: Added to them, ``[outputs]``; copied.
        """
        padded = None
        if bias is not None:
            padded = torch.zeros(len(panels) * _kernels.PANEL_OUTPUTS)
            padded[:outputs] = bias.detach()
        return _kernels.Panels(
            panels.detach(),
            outputs=outputs,
            bias=padded,
            workspace=self._workspace,
            kernel=self._kernel,
        )
