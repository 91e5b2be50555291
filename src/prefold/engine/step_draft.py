"""Step draft: which sequences a step advances, while that is still being decided.

A draft keeps sequences and numbers of tokens only. What the runner gets is made of it at
the very end: until then a sequence can be taken out again, a pending copy can be dropped,
and entries of a block table can be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefold.blocks.table import BlockCopy, num_blocks_for
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """One sequence's share of a step.

    Attributes:
        start: Positions before it whose KV exists once the step's copies are done.
        end: The position behind the last one computed.
        copies: Whether its pending copy is part of the step.
        is_sampled: Whether its next token is chosen after the step.
    """

    sequence: Sequence
    start: int
    end: int
    copies: bool
    is_sampled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledStep:
    """A step as the scheduler keeps it (``advances``) and as the runner sees it.

    The slices of the plan are in the order of ``advances``. They are views of block
    tables, valid until the cache is called next.
    """

    number: int
    advances: tuple[Advance, ...]
    plan: StepPlan


class StepDraft:
    """A step under planning. Owned by the scheduler, for one call of ``plan``."""

    __slots__ = ("_block_size", "_num_tokens_by_sequence", "num_free_tokens", "number")

    def __init__(self, number: int, max_tokens: int, block_size: int) -> None:
        self.number = number
        self._block_size = block_size
        self.num_free_tokens = max_tokens
        self._num_tokens_by_sequence: dict[Sequence, int] = {}

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Let a sequence advance by ``num_tokens`` tokens."""
        self._num_tokens_by_sequence[sequence] = num_tokens
        self.num_free_tokens -= num_tokens

    def discard(self, sequence: Sequence) -> None:
        """Take a sequence out, if it is in."""
        self.num_free_tokens += self._num_tokens_by_sequence.pop(sequence, 0)

    def finish(self) -> ScheduledStep:
        """Return the step. Nothing may change in the cache before it was executed.

        A sequence whose pending copy was dropped starts earlier and gets as many tokens
        as were planned for it, so it ends earlier.
        """
        advances: list[Advance] = []
        slices: list[SequenceSlice] = []
        copies: list[BlockCopy] = []
        for sequence, num_tokens in self._num_tokens_by_sequence.items():
            lease = sequence.held_lease
            start = sequence.num_ready
            end = start + num_tokens
            copy = lease.pending_copy
            if copy is not None:
                copies.append(copy)
            advance = Advance(
                sequence=sequence,
                start=start,
                end=end,
                copies=copy is not None,
                is_sampled=end == sequence.num_tokens and sequence.wants_token,
            )
            advances.append(advance)
            token_ids = sequence.token_ids(start, end)
            content = sequence.content
            slices.append(
                SequenceSlice(
                    token_ids=token_ids,
                    start=start,
                    block_ids=lease.block_ids[: num_blocks_for(end, self._block_size)],
                    num_logits=sequence.num_logits(
                        start, end, is_sampled=advance.is_sampled
                    ),
                    content=None if content is None else content.cut(token_ids, start, end),
                )
            )
        return ScheduledStep(
            number=self.number,
            advances=tuple(advances),
            plan=StepPlan(slices=tuple(slices), copies=tuple(copies)),
        )
