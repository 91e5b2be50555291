"""Step plan: which tokens of which sequences one forward pass computes.

The scheduler makes a plan, a ``Runner`` carries it out, and neither knows the
other. A step has a fixed order: copies of blocks, then the new tokens' KV is
written, then attention reads. So a copied block may be read, and a block that a
copy has filled may be written behind the copied part, within one plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from prefold.blocks.table import BlockCopy, BlockIds, TokenIds
from prefold.engine.adapter import Adapter
from prefold.engine.sequence_content import SliceContent


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSlice:
    """One sequence's share of a step.

    Attributes:
        token_ids: The tokens at positions ``start`` and on; at least one.
        start: Positions before it whose KV is in the sequence's blocks already.
        block_ids: The sequence's blocks from position 0; they cover the slice.
        num_logits: For how many of the last tokens the logits are wanted.
        adapter: What its tokens pass; None for the model as it is.
        adapted_from: The first position that passes it.
        content: What positions have besides token ids; None if nothing.
    """

    token_ids: TokenIds = field(repr=False)
    start: int
    block_ids: BlockIds
    num_logits: int
    adapter: Adapter | None = None
    adapted_from: int = 0
    content: SliceContent | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        """The position behind the slice's last token."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward pass over several sequences."""

    slices: tuple[SequenceSlice, ...]
    copies: tuple[BlockCopy, ...] = ()


class Runner(Protocol):
    """What the engine needs of a model: the seam for a model without weights."""

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Carry out a plan; return logits, float32 ``[sum of num_logits, vocab]``.

        Rows come in the order of the slices and, within one, of its tokens.

        Raises:
            UnusableStepError: The KV of some slices is not numbers. The others can be
                computed again.
        """
        ...

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first positions of blocks into others, at once and in order."""
        ...
