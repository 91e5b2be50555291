"""Linear kind: which modules are linear layers, whatever they are computed by."""

from __future__ import annotations

from torch import nn

from prefold.engine.native import HAS_KERNELS

if HAS_KERNELS:
    from prefold.engine.packed_linear import PackedLinear


def is_linear(module: nn.Module) -> bool:
    """Tell whether a module is a linear layer, replaced or not."""
    return isinstance(module, nn.Linear) or (
        HAS_KERNELS and isinstance(module, PackedLinear)
    )
