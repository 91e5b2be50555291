"""An engine without a model: a runner whose store knows what every slot must hold.

Every slot holds its position, its token and a digest of all tokens up to there. The next
token is a function of the last digest. A step first carries out the copies, then writes,
then reads *every* position of every slice, so a slot that is wrong, stale or missing is
found, and a reply shows which tokens were really read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from prefold.blocks.pool import BlockState
from prefold.blocks.table import BlockCopy
from prefold.cache import NO_QUOTAS, PrefixCache, QuotaSettings
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.config import EngineConfig, ModelLimits, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.observer import EngineObserver, NoObserver
from prefold.engine.parts import EngineParts
from prefold.engine.sampler import Sampler
from prefold.errors import InvariantError
from prefold.eviction.registry import DEFAULT_POLICY
from support.fingerprints import make_fingerprint

VOCAB_SIZE = 61

_FACTOR = 6364136223846793005
_MASK = 2**64 - 1
_NOWHERE = -1


class FakeStoreError(InvariantError):
    """A slot was read, written or copied that should not have been.

    An ``InvariantError``, so that no engine takes it for one more step that failed.
    """


class FakeRunnerError(RuntimeError):
    """The failure that a test asked for."""


def next_digest(digest: int, token_id: int, weights: int = 0) -> int:
    return (digest * _FACTOR + token_id + 1 + weights) & _MASK


def next_token(digest: int) -> int:
    return (digest >> 33) % VOCAB_SIZE


def expected_reply(
    prompt: Sequence[int], num_tokens: int, *, weights: int = 0
) -> list[int]:
    """What a request gets that runs alone and without a cache."""
    digest = 0
    for token_id in prompt:
        digest = next_digest(digest, token_id, weights)
    reply = []
    for _ in range(num_tokens):
        reply.append(next_token(digest))
        digest = next_digest(digest, reply[-1], weights)
    return reply


class FakeRunner:
    """Carries out plans on a store of digests.

    Attributes:
        num_calls: Steps asked for.
        fails_at: Numbers of calls that fail after their writes, counted from 1.
        interrupts_at: Numbers of calls that Ctrl-C interrupts before they do anything.
        fails_copies: Whether copies outside a step fail.
        spoils: Says for which slices the logits are NaN.
        may_write: Says into which blocks a step may write.
        weights: A number that every digest depends on.
        computed: How often each prefix was computed, by its digest.
        steps: The numbers of tokens of each step's slices.
    """

    def __init__(self, num_blocks: int, block_size: int, *, weights: int = 0) -> None:
        shape = (num_blocks, block_size)
        self.block_size = block_size
        self.weights = weights
        self.positions = np.full(shape, _NOWHERE, dtype=np.int64)
        self.tokens = np.zeros(shape, dtype=np.uint64)
        self.digests = np.zeros(shape, dtype=np.uint64)
        self.num_calls = 0
        self.fails_at: set[int] = set()
        self.interrupts_at: set[int] = set()
        self.spoils: Callable[[SequenceSlice], bool] = lambda _: False
        self.may_write: Callable[[int], bool] = lambda _: True
        self.computed: dict[int, int] = {}
        self.steps: list[tuple[int, ...]] = []
        self.fails_copies = False

    def successor(self, weights: int) -> FakeRunner:
        """Return a runner of other weights over the same store.

        What one of them has written, the other refuses to read.
        """
        runner = FakeRunner(0, self.block_size, weights=weights)
        runner.positions, runner.tokens = self.positions, self.tokens
        runner.digests = self.digests
        runner.may_write = self.may_write
        return runner

    def execute(self, plan: StepPlan) -> torch.Tensor:
        self.num_calls += 1
        self._check_plan(plan)
        if self.num_calls in self.interrupts_at:
            raise KeyboardInterrupt
        self._copy(plan.copies)
        ends = [self._write(piece) for piece in plan.slices]
        if self.num_calls in self.fails_at:
            raise FakeRunnerError("the device caught fire")
        logits = []
        for piece, digest in zip(plan.slices, ends, strict=True):
            self._read(piece)
            if piece.num_logits:
                row = torch.zeros(VOCAB_SIZE)
                row[next_token(digest)] = 1.0
                if self.spoils(piece):
                    row[:] = torch.nan
                logits.append(row)
        self.steps.append(tuple(piece.num_tokens for piece in plan.slices))
        return torch.stack(logits) if logits else torch.empty(0, VOCAB_SIZE)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if self.fails_copies:
            raise FakeRunnerError("the device caught fire")
        self._copy(copies)

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            end = copy.num_tokens
            for array in (self.positions, self.tokens, self.digests):
                array[copy.target, :end] = array[copy.source, :end]
            self.positions[copy.target, end:] = _NOWHERE
            if (self.positions[copy.target, :end] == _NOWHERE).any():
                raise FakeStoreError("a copy brings slots that nobody has written")

    def _check_plan(self, plan: StepPlan) -> None:
        written: set[int] = set()
        read: set[int] = set()
        for piece in plan.slices:
            if piece.num_tokens < 1:
                raise FakeStoreError("a slice is empty")
            if len(piece.block_ids) != -(-piece.end // self.block_size):
                raise FakeStoreError("the block table does not cover the slice exactly")
            first = piece.start // self.block_size
            blocks = [int(block) for block in piece.block_ids]
            if len(set(blocks)) != len(blocks):
                raise FakeStoreError("a block stands twice in a table")
            if not written.isdisjoint(blocks) or not read.isdisjoint(blocks[first:]):
                raise FakeStoreError("a block is written that another slice uses")
            written.update(blocks[first:])
            read.update(blocks)
        self._check_copies(plan.copies, written)
        if not all(self.may_write(block) for block in written):
            raise FakeStoreError("a block that is not private is written")

    def _check_copies(self, copies: Sequence[BlockCopy], written: set[int]) -> None:
        sources = {int(copy.source) for copy in copies}
        targets = {int(copy.target) for copy in copies}
        if len(targets) != len(copies) or not targets <= written:
            raise FakeStoreError("a copy goes where no slice writes")
        if written & sources:
            raise FakeStoreError("a copy's source is written in the same step")

    def _write(self, piece: SequenceSlice) -> int:
        size = self.block_size
        digest = 0
        if piece.start:
            block, offset = divmod(piece.start - 1, size)
            digest = int(self.digests[piece.block_ids[block], offset])
        for index, token_id in enumerate(piece.token_ids.tolist()):
            digest = next_digest(digest, token_id, self.weights)
            block, offset = divmod(piece.start + index, size)
            slot = piece.block_ids[block], offset
            self.positions[slot] = piece.start + index
            self.tokens[slot] = token_id
            self.digests[slot] = digest
            if offset == 0:
                # The rest of the block is somebody else's leavings.
                self.positions[piece.block_ids[block], 1:] = _NOWHERE
            self.computed[digest] = self.computed.get(digest, 0) + 1
        return digest

    def _read(self, piece: SequenceSlice) -> None:
        positions = self._rows(self.positions, piece)
        tokens = self._rows(self.tokens, piece)
        digests = self._rows(self.digests, piece)
        if not np.array_equal(positions, np.arange(piece.end)):
            raise FakeStoreError("a slot of another position, or a missing one, was read")
        before = np.concatenate([np.zeros(1, dtype=np.uint64), digests[:-1]])
        chained = before * np.uint64(_FACTOR) + tokens + np.uint64(1 + self.weights)
        if not np.array_equal(chained, digests):
            raise FakeStoreError("a slot of another prefix was read")

    def _rows(self, array: npt.NDArray[np.generic], piece: SequenceSlice) -> np.ndarray:
        return array[piece.block_ids].reshape(-1)[: piece.end]


class FakeClock:
    """A clock that moves a thousandth of a second with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class FakeEngine(Engine):
    """An engine over a ``FakeRunner``, with both in reach of the tests."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 100_000,
        scheduler: SchedulerConfig | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
        policy: str = DEFAULT_POLICY,
        quotas: QuotaSettings = NO_QUOTAS,
        observer: Callable[[PrefixCache], EngineObserver] = lambda _: NoObserver(),
    ) -> None:
        clock = FakeClock()
        cache = PrefixCache(
            num_blocks=num_blocks,
            block_size=block_size,
            clock=clock,
            policy=policy,
            quotas=quotas,
        )
        self.runner = FakeRunner(num_blocks, block_size)
        self.runner.may_write = lambda block: (
            cache._pool.state_of(block) is BlockState.PRIVATE
        )
        self.fingerprint = make_fingerprint(block_size=block_size)
        super().__init__(
            EngineParts(
                cache=cache,
                runner=self.runner,
                sampler=Sampler(VOCAB_SIZE),
                fingerprint=self.fingerprint,
                clock=clock,
                entropy=lambda: 0,
            ),
            EngineConfig(
                limits=ModelLimits(
                    vocab_size=VOCAB_SIZE,
                    max_model_len=max_model_len,
                    eos_token_ids=eos_token_ids,
                ),
                scheduler=scheduler or SchedulerConfig(),
            ),
            observer(cache),
        )
