"""Row-wise norms: a compiled root-mean-square norm in place of a model's own.

torch squares, averages and scales in six calls, each of which costs more than the
arithmetic where rows are few. The compiled norm sums squares in double precision, row by
row, so that a row's bits do not depend on its neighbours.
"""

from __future__ import annotations

import torch
from torch import nn

from prefold.engine.linear import has_hooks
from prefold.engine.native import HAS_KERNELS, NATIVE, kernel_name

if HAS_KERNELS:
    from prefold.engine import _kernels

#: Part of the numerics. Raise it whenever a norm's results may get other bits.
NORM_VERSION = 1

#: The name in the numerics of norms that are left as they are.
_PLAIN = "torch"

#: What families call the number that keeps the root from zero.
_EPSILONS = ("variance_epsilon", "eps")

#: Largest difference from the module's own result, as a share of it.
_TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}


class NativeNorm(nn.Module):
    """A root-mean-square norm: ``weight * x / sqrt(mean(x ** 2) + epsilon)``.

    Args:
        weight: ``[width]``, the module's own parameter.
        epsilon: Added to the mean.
    """

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = epsilon
        self.native = _kernels.RowNorm(
            weight.detach().float().clone(), epsilon=epsilon, kernel=kernel_name()
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``[..., width]`` for ``[..., width]``, in the same type.

        Raises:
            ValueError: The states are neither float32 nor bfloat16, or of another width.
        """
        states = hidden_states.contiguous()
        out = torch.empty_like(states)
        self.native.apply(states, out, num_threads=torch.get_num_threads())
        return out

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.variance_epsilon}"


@torch.no_grad()
def replace_norms(model: nn.Module) -> int:
    """Replace a model's root-mean-square norms, in place; return how many there were.

    Ones with hooks, with more than a weight, or with other results are left.
    """
    replaced: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            # A module that is used in two places stays one.
            if id(child) not in replaced:
                norm = _native_norm(child)
                if norm is None:
                    continue
                replaced[id(child)] = norm
            parent.register_module(name, replaced[id(child)])
    return len(replaced)


def describe_norms(model: nn.Module) -> str:
    """Return the name in the numerics of how a model's norms are computed."""
    if any(isinstance(module, NativeNorm) for module in model.modules()):
        return f"{NATIVE}-{NORM_VERSION}"
    return _PLAIN


def _native_norm(module: nn.Module) -> NativeNorm | None:
    """Return what does the same as a module, if it is such a norm."""
    own = vars(module)
    epsilon = next((own[name] for name in _EPSILONS if name in own), None)
    weight = dict(module.named_parameters()).get("weight")
    if (
        not type(module).__name__.endswith("RMSNorm")
        or has_hooks(module)
        or not isinstance(epsilon, float)
        or weight is None
        or weight.ndim != 1
        or weight.dtype not in _TOLERANCE
        or len(list(module.parameters())) + len(list(module.buffers())) != 1
    ):
        return None
    norm = NativeNorm(weight, epsilon).train(mode=module.training)
    return norm if _gives_the_same(norm, module) else None


def _gives_the_same(norm: NativeNorm, module: nn.Module) -> bool:
    """Tell whether a norm's results are a module's, up to rounding."""
    weight = norm.weight
    generator = torch.Generator().manual_seed(0)
    # Rows of different sizes: small ones show what is added to the mean.
    sizes = torch.tensor([[1e-3], [1.0], [30.0]])
    rows = torch.randn(3, len(weight), generator=generator) * sizes
    rows = rows.to(weight.dtype)
    wanted, found = module(rows), norm(rows)
    tolerance = _TOLERANCE[weight.dtype]
    return wanted.dtype is found.dtype and torch.allclose(
        found.float(), wanted.float(), rtol=tolerance, atol=0.0
    )
