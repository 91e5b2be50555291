"""Packed experts: a mixture's stacked weights as panels, and tokens grouped by expert.

Each expert's weights are read once for all its tokens. A token's bits do not depend on
who else chose the expert, since the packed layer's do not::

    tokens     0 1 2          chosen      0: a b   1: b c   2: a b
    by expert  a: 0 2   b: 0 1 2   c: 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from prefold.engine.experts import GATE, PACKED
from prefold.engine.linear import has_hooks
from prefold.engine.panels import PanelMaker, obstacle_in
from prefold.engine.thread_share import even_length
from prefold.errors import InvariantError

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
        counts = torch.bincount(experts, minlength=_number(module.num_experts)).tolist()
        rows = self._up.run(hidden_states[order // chosen], counts)
        rows = self._down.run(_activate(module, rows), counts)
        if module.has_post_expert_norm:
            rows = module.get_submodule("post_expert_norm")(rows)
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


def pack_experts(model: nn.Module, maker: PanelMaker) -> Mapping[str, str]:
    """Pack the stacked experts of a model, in place.

    Returns:
        The modules whose experts are left as they are, and why.
    """
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        if not hasattr(module, GATE):
            continue
        obstacle = _obstacle_of(module)
        if obstacle is None:
            up = _pack_stack(module, _up_name(module), maker)
            down = _pack_stack(module, "down_proj", maker)
            setattr(module, PACKED, PackedExperts(up, down))
        else:
            left[name] = obstacle
    return left


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


def _obstacle_of(module: nn.Module) -> str | None:
    """Say why a module's experts cannot be packed, or return None."""
    if has_hooks(module):
        return "it has hooks"
    if vars(module).get("_is_expert_parallel"):
        return "it has a part of the experts only"
    own = dict(module.named_parameters(recurse=False))
    for name in (_up_name(module), "down_proj"):
        weight = own.get(name)
        if weight is None or weight.ndim != 3:
            return f"its {name} is no stack of weights"
        obstacle = obstacle_in(weight)
        if obstacle is not None:
            return obstacle
    return None


def _number(attribute: object) -> int:
    """Return what a module's attribute is where mypy believes in tensors and modules."""
    if not isinstance(attribute, int):
        raise InvariantError("the number of experts is no number")
    return attribute


def _activate(module: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return ``[rows, inputs of the second projection]``, without gaps."""
    gate: Callable[[torch.Tensor], torch.Tensor] = getattr(module, GATE)
    activated: torch.Tensor
    if not module.has_gate:
        # A module's attributes are tensors or modules, mypy believes.
        act: Callable[[torch.Tensor], torch.Tensor] = module.act_fn  # type: ignore[assignment]
        activated = act(rows)
    elif getattr(type(module), GATE).__module__ == _PLAIN_GATES:
        activated = gate(rows)
    else:
        # It may be made of torch's functions, so nothing may be left over at the end of
        # a thread's share.
        num_rows, width = len(rows), rows.shape[1] // 2
        num_threads = torch.get_num_threads()
        while even_length(num_rows * width, num_threads) != num_rows * width:
            num_rows += 1
        padded = rows.new_zeros(num_rows, rows.shape[1])
        padded[: len(rows)] = rows
        activated = gate(padded)[: len(rows)]
    return activated.contiguous()
