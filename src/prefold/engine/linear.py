"""Linear layers by torch, for what cannot be packed (see ``packed_linear``).

Weights times rows where rows are few, rows times weights where they are many: with most
shapes and few threads both are the same sums in the same order and differ in time only;
the row probe holds them against each other at start, and where a bit differs all layers
go back to the plain order. The matrix library splits a product among its
threads by the rows of the left factor, and a step of a few tokens has hardly any::

    rows x weights^T   16 x 576 x 1536     few rows on the left: slow
    weights x rows^T   1536 x 576 x 16     many: a third less time, then turned round
"""

from __future__ import annotations

import torch
from torch import nn

#: The names of both orders in the numerics.
TURNED = "torch-turned"
PLAIN = "torch"

#: From more rows on, turning the result round costs more than is saved.
FEW_ROWS = 128

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class TurnedLinear(nn.Linear):
    """A linear layer that multiplies in the order that is faster for its rows.

    Shares the parameters of the layer it is made of, under the same names.
    """

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features, bias=False, device="meta")
        self.weight = inner.weight
        self.bias = inner.bias
        self.few_rows = FEW_ROWS

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out_features]`` for ``[..., in_features]``, without gaps."""
        rows = states.reshape(-1, self.in_features)
        if len(rows) <= self.few_rows:
            result = torch.mm(self.weight, rows.t()).t().contiguous()
        else:
            result = torch.mm(rows, self.weight.t())
        if self.bias is not None:
            # Apart from the product: a fused sum may be rounded once instead of twice.
            result += self.bias
        return result.view(*states.shape[:-1], self.out_features)


def replace_linears(model: nn.Module) -> int:
    """Replace a model's linear layers, in place; return how many there were.

    Ones of a class derived from ``nn.Linear``, or with hooks, are left: they may do
    something else.
    """
    replaced: dict[int, TurnedLinear] = {}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear and not has_hooks(child):
                # A module that is used in two places stays one.
                turned = replaced.setdefault(id(child), TurnedLinear(child))
                parent.register_module(name, turned)
    return len(replaced)


def has_hooks(module: nn.Module) -> bool:
    """Tell whether calling a module does more than its class says."""
    own = vars(module)
    return "forward" in own or any(own.get(name) for name in _HOOKS)


def turn_back(model: nn.Module) -> bool:
    """Let all layers multiply in the plain order; return whether any did not before."""
    turned = [m for m in model.modules() if isinstance(m, TurnedLinear) and m.few_rows]
    for layer in turned:
        layer.few_rows = 0
    return bool(turned)


def order_of(model: nn.Module) -> str:
    """Return the name of the order in which a model's layers multiply."""
    is_turned = any(isinstance(m, TurnedLinear) and m.few_rows for m in model.modules())
    return TURNED if is_turned else PLAIN
