"""Experts: a mixture's matrix products in a form that is the same for every row.

Packed experts group tokens by expert (see ``packed_experts``). Where there are none: of
transformers' ways to run experts only ``batched_mm`` computes a token by itself; the
others group tokens by expert, so a row's neighbours choose the kernel. It copies each
chosen expert's weights, so tokens are fed to it in slices that bound the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

#: The name under which transformers finds ``run_experts``.
EXPERTS_NAME = "prefold"

#: The name in the numerics of what is done without packed experts.
IMPLEMENTATION = "batched_mm"

#: What transformers calls how experts use their gate; all whose experts it runs have it.
GATE = "_apply_gate"

#: Where a module keeps its packed experts, if it has any.
PACKED = "prefold_experts"

#: Copies of expert weights that one slice may make, and the most tokens of a slice.
_SLICE_BYTES = 256 << 20
_SLICE_TOKENS = 16


class PackedRun(Protocol):
    """Experts that were packed."""

    def run(
        self,
        module: nn.Module,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Run ``[tokens, hidden]`` through their chosen experts."""
        ...


def run_experts(
    module: nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Run ``[tokens, hidden]`` through their chosen experts."""
    packed: PackedRun | None = getattr(module, PACKED, None)
    if packed is not None:
        return packed.run(module, hidden_states, top_k_index, top_k_weights)
    batched_mm: Callable[..., torch.Tensor] = ALL_EXPERTS_FUNCTIONS["batched_mm"]
    chosen = top_k_index.shape[-1]
    expert_bytes = sum(p[0].numel() * p.element_size() for p in module.parameters())
    num_tokens = max(min(_SLICE_BYTES // (expert_bytes * chosen), _SLICE_TOKENS), 1)
    outputs = [
        batched_mm(module, states, index, weights)
        for states, index, weights in zip(
            torch.split(hidden_states, num_tokens),
            torch.split(top_k_index, num_tokens),
            torch.split(top_k_weights, num_tokens),
            strict=True,
        )
    ]
    return torch.cat(outputs)
