"""Floors: what a forward pass would take if nothing but its linear layers cost anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn
from transformers import PreTrainedModel

#: Side of the matrices whose product is timed.
_SIDE = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the machine does in a moment.

    Attributes:
        read_s: Seconds to read a model's weights once, by torch's sum.
        flop_s: Seconds for a multiplication or an addition, by torch's matrix product.
    """

    read_s: float
    flop_s: float


class Floors:
    """Floors of steps over one model's weights.

    Args:
        model: Prefold's, or transformers' own.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.num_weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
        # A module's attributes are tensors or modules, mypy believes.
        find: Callable[[], nn.Module] = model.get_output_embeddings
        head = find()
        self.num_head_weights = sum(p.numel() for p in head.parameters() if p.ndim > 1)
        self._numbers = torch.ones(self.num_weights)
        self._left, self._right = torch.randn(2, _SIDE, _SIDE)

    def measure(self, times: int = 3) -> Rates:
        """Return the machine's rates now: medians of a few goes."""
        reads, products = [], []
        for _ in range(times):
            began_at = time.perf_counter()
            self._numbers.sum()
            read_at = time.perf_counter()
            torch.mm(self._left, self._right)
            reads.append(read_at - began_at)
            products.append(time.perf_counter() - read_at)
        return Rates(read_s=median(reads), flop_s=median(products) / (2 * _SIDE**3))

    def of_step(self, rates: Rates, rows: int, head_rows: int | None = None) -> float:
        """Return the larger of two floors in seconds: the weights' bytes, and arithmetic.

        Args:
            rates: Of the machine.
            rows: Tokens of the step.
            head_rows: Tokens whose logits are wanted; None for all.
        """
        body = self.num_weights - self.num_head_weights
        head = self.num_head_weights * (rows if head_rows is None else head_rows)
        return max(rates.read_s, 2 * (rows * body + head) * rates.flop_s)
