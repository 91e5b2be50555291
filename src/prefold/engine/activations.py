"""Row-wise activations: a token's activation does not depend on its neighbours.

torch applies SiLU, GELU and the like by a vector function, and by a scalar one to what
is left over at the end of each thread's share (see ``thread_share``). The scalar one
rounds differently, so an element's last bit would depend on where it lies in the batch.
The compiled activations treat every number alike; for others the elements are laid out so
that nothing is left over.
"""

from __future__ import annotations

import torch
import transformers.activations
from torch import nn
from transformers.activations import (
    AccurateGELUActivation,
    FastGELUActivation,
    GELUActivation,
    GELUTanh,
    NewGELUActivation,
    QuickGELUActivation,
    SiLUActivation,
)

from prefold.engine.native import HAS_KERNELS, NATIVE, kernel_name
from prefold.engine.thread_share import even_length

if HAS_KERNELS:
    from prefold.engine import _kernels

#: The name in the numerics of torch's functions over even shares.
EVEN_SHARES = "even-shares"

#: Part of the numerics. Raise it whenever a compiled one's results may get other bits.
ACTIVATION_VERSION = 1

#: What the compiled activations take.
_NATIVE_DTYPES = (torch.float32, torch.bfloat16)

_NATIVE_FUNCTIONS: dict[type[nn.Module], str] = {
    nn.SiLU: "silu",
    SiLUActivation: "silu",
    GELUActivation: "gelu",
    GELUTanh: "gelu_tanh",
    NewGELUActivation: "gelu_tanh",
    FastGELUActivation: "gelu_tanh",
    AccurateGELUActivation: "gelu_tanh",
    QuickGELUActivation: "quick_gelu",
}


def _element_wise_types() -> tuple[type[nn.Module], ...]:
    entries = transformers.activations.ACT2CLS.values()
    named = {entry[0] if isinstance(entry, tuple) else entry for entry in entries}
    plain = {
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Sigmoid,
        nn.Tanh,
        nn.ReLU,
        nn.ReLU6,
        nn.LeakyReLU,
    }
    return tuple(kind for kind in named | plain if isinstance(kind, type))


class RowwiseActivation(nn.Module):
    """An element-wise activation with results that depend on the element alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        length = states.numel()
        even = even_length(length, torch.get_num_threads())
        # A view with gaps is walked in pieces, each with something left over.
        flat = states.contiguous().view(-1)
        if even != length:
            padded = flat.new_zeros(even)
            padded[:length] = flat
            flat = padded
        result: torch.Tensor = self.inner(flat)
        return result[:length].view(states.shape)


class NativeActivation(RowwiseActivation):
    """The same by a compiled function, for the types that it takes.

    Attributes:
        function: The function's name.
    """

    def __init__(self, inner: nn.Module, function: str) -> None:
        super().__init__(inner)
        self.function = function
        self._native = _kernels.Activation(function, kernel=kernel_name())

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if states.dtype not in _NATIVE_DTYPES:
            return super().forward(states)
        states = states.contiguous()
        out = torch.empty_like(states)
        self._native.apply(states, out, num_threads=torch.get_num_threads())
        return out


def replace_activations(model: nn.Module, *, is_native: bool = False) -> int:
    """Make a model's activation modules row-wise, in place; return how many there were.

    Ones with parameters of their own are left: they need not be element-wise.

    Args:
        model: Whose modules are replaced.
        is_native: Take compiled functions where there are such.
    """
    known = _element_wise_types()
    replaced: dict[int, RowwiseActivation] = {}
    parents = [m for m in model.modules() if not isinstance(m, RowwiseActivation)]
    for parent in parents:
        for name, child in parent.named_children():
            if isinstance(child, known) and next(child.parameters(), None) is None:
                # A module that is used in two places stays one.
                if id(child) not in replaced:
                    function = _native_function(child) if is_native else None
                    replaced[id(child)] = (
                        RowwiseActivation(child)
                        if function is None
                        else NativeActivation(child, function)
                    )
                parent.register_module(name, replaced[id(child)])
    return len(replaced)


def describe_activations(model: nn.Module) -> str:
    """Return the name in the numerics of how a model's activations are computed."""
    found = [m for m in model.modules() if isinstance(m, RowwiseActivation)]
    is_native = [isinstance(m, NativeActivation) for m in found]
    names = []
    if any(is_native):
        names.append(f"{NATIVE}-{kernel_name()}-{ACTIVATION_VERSION}")
    if not all(is_native) or not found:
        names.append(EVEN_SHARES)
    return "+".join(names)


def _native_function(activation: nn.Module) -> str | None:
    """Return the compiled function that does what a module does, if there is one."""
    if type(activation) is nn.GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return _NATIVE_FUNCTIONS.get(type(activation))
