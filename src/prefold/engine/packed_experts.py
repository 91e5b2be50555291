"""Packed experts: a mixture's stacked weights as panels, and tokens grouped by expert.

Each expert's weights are read once for all its tokens. A token's bits do not depend on
who else chose the expert, since the packed layer's do not::

    tokens     0 1 2          chosen      0: a b   1: b c   2: a b
    by expert  a: 0 2   b: 0 1 2   c: 1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from prefold.engine.experts import PACKED
from prefold.engine.linear import has_hooks
from prefold.engine.panels import PanelMaker, obstacle_in
from prefold.engine.thread_share import even_length

#: Whose gates are an activation module and a product.
_PLAIN_GATES = "transformers.integrations.moe"


class ExpertStack:
    """One projection of all experts of a module.

    Args:
        maker: Of the model's panels.
        weight: ``[experts, outputs, inputs]``.
        bias: ``[experts, outputs]``, or None.

    Attributes:
        panels: Of all experts, one after the other.
    """

    __slots__ = ("_layers", "num_outputs", "panels")

    def __init__(
        self, maker: PanelMaker, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        self.num_outputs = weight.shape[1]
        self.panels = maker.pack_stack(weight)
        self._layers = [
            maker.open(panels, self.num_outputs, None if bias is None else bias[expert])
            for expert, panels in enumerate(self.panels)
        ]

    def run(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return ``[rows, outputs]``; the first ``counts[0]`` rows are expert 0's."""
        out = rows.new_empty(len(rows), self.num_outputs)
        threads = torch.get_num_threads()
        row = 0
        for layer, count in zip(self._layers, counts, strict=True):
            if count:
                end = row + count
                layer.multiply(rows[row:end], out[row:end], num_threads=threads)
                row = end
        return out


class PackedExperts:
    """Both projections of a module's experts. Owned by the module."""

    __slots__ = ("_down", "_up")

    def __init__(self, up: ExpertStack, down: ExpertStack) -> None:
        self._up = up
        self._down = down

    def run(
        self,
        module: nn.Module,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Run ``[tokens, hidden]`` through their chosen experts."""
        chosen = top_k_index.shape[-1]
        experts = top_k_index.reshape(-1)
        order = torch.argsort(experts, stable=True)
        counts = torch.bincount(experts, minlength=module.num_experts).tolist()
        rows = self._up.run(hidden_states[order // chosen], counts)
        rows = self._down.run(_activate(module, rows), counts)
        if module.has_post_expert_norm:
            rows = module.post_expert_norm(rows)
        by_token = torch.empty_like(rows)
        by_token[order] = rows
        weighted = (by_token * top_k_weights.reshape(-1, 1)).view(
            len(hidden_states), chosen, -1
        )
        # One after the other: a sum over an axis may be taken in another order.
        total = weighted[:, 0]
        for choice in range(1, chosen):
            total = total + weighted[:, choice]
        return total.to(hidden_states.dtype)


def pack_experts(model: nn.Module, maker: PanelMaker) -> int:
    """Pack the stacked experts of a model, in place; return how many modules have them."""
    found = [module for module in model.modules() if _is_packable(module)]
    for module in found:
        up = _pack_stack(module, _up_name(module), maker)
        down = _pack_stack(module, "down_proj", maker)
        setattr(module, PACKED, PackedExperts(up, down))
    return len(found)


def _pack_stack(module: nn.Module, name: str, maker: PanelMaker) -> ExpertStack:
    weight = module.get_parameter(name).detach()
    if module.is_transposed:
        weight = weight.transpose(1, 2)
    bias = getattr(module, f"{name}_bias") if module.has_bias else None
    stack = ExpertStack(maker, weight, bias)
    # The panels stand for the weights in the model's state.
    module.register_parameter(name, stack.panels)
    return stack


def _up_name(module: nn.Module) -> str:
    return "gate_up_proj" if module.has_gate else "up_proj"


def _is_packable(module: nn.Module) -> bool:
    if not hasattr(module, "_apply_gate") or has_hooks(module):
        return False
    own = dict(module.named_parameters(recurse=False))
    stacks = [own.get(_up_name(module)), own.get("down_proj")]
    return not module._is_expert_parallel and all(
        weight is not None and weight.ndim == 3 and obstacle_in(weight) is None
        for weight in stacks
    )


def _activate(module: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return ``[rows, inputs of the second projection]``, without gaps."""
    activated: torch.Tensor
    if not module.has_gate:
        activated = module.act_fn(rows)
    elif type(module)._apply_gate.__module__ == _PLAIN_GATES:
        activated = module._apply_gate(rows)
    else:
        # It may be made of torch's functions, so nothing may be left over at the end of
        # a thread's share.
        num_rows, width = len(rows), rows.shape[1] // 2
        num_threads = torch.get_num_threads()
        while even_length(num_rows * width, num_threads) != num_rows * width:
            num_rows += 1
        padded = rows.new_zeros(num_rows, rows.shape[1])
        padded[: len(rows)] = rows
        activated = module._apply_gate(padded)[: len(rows)]
    return activated.contiguous()
