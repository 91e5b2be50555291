"""Verification rig: engines over one pool of a chosen size, and a record of their steps.

All engines of a rig share the cache, so one can publish what another then hits. Between
the engine and the model stands a recorder, which sees what a step really does: how many
sequences it holds, which blocks they have in common, and who writes where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from prefold.blocks.table import BlockCopy, TokenIds
from prefold.cache import NO_CACHE, READ_WRITE, Access, PrefixCache
from prefold.engine.batch import Runner, SequenceSlice, StepPlan
from prefold.engine.config import EngineConfig, ModelLimits, RequestOptions, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.parts import EngineParts
from prefold.engine.request import RequestId, RequestOutput, SamplingParams
from prefold.engine.sampler import Sampler
from prefold.engine.verification_ledger import ExpectedHit, PublishedTokens
from prefold.errors import InvariantError
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint

#: Enough for most prompts in one step.
LARGE_STEP = 768

NOTHING = ExpectedHit(least=0, most=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The model under verification.

    Attributes:
        make_runner: Gives the model a pool of so many blocks.
        policy: Name of the eviction policy.
    """

    make_runner: Callable[[int], Runner]
    fingerprint: Fingerprint
    limits: ModelLimits
    block_size: int
    policy: str = "lru"


class StepRecorder:
    """A runner that notes what it is asked to do and lets another do it.

    Attributes:
        num_steps: Steps since the last ``reset``.
        num_lonely_steps: Of those, the ones with a single sequence.
        num_shared_blocks: Blocks that two sequences of a step had in common, at most.
        num_shared_writes: Steps in which one wrote to a block that another one holds.
    """

    __slots__ = (
        "_block_size",
        "_runner",
        "num_lonely_steps",
        "num_shared_blocks",
        "num_shared_writes",
        "num_steps",
    )

    def __init__(self, runner: Runner, block_size: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self.reset()

    def reset(self) -> None:
        self.num_steps = 0
        self.num_lonely_steps = 0
        self.num_shared_blocks = 0
        self.num_shared_writes = 0

    def execute(self, plan: StepPlan) -> torch.Tensor:
        self.num_steps += 1
        self.num_lonely_steps += len(plan.slices) == 1
        tables = [piece.block_ids for piece in plan.slices]
        held, num_holders = np.unique(np.concatenate(tables), return_counts=True)
        shared = held[num_holders > 1]
        self.num_shared_blocks = max(self.num_shared_blocks, len(shared))
        written = np.concatenate([self._written(piece) for piece in plan.slices])
        self.num_shared_writes += bool(np.isin(written, shared).any())
        return self._runner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._runner.copy_blocks(copies)

    def _written(self, piece: SequenceSlice) -> TokenIds:
        first, last = piece.start // self._block_size, (piece.end - 1) // self._block_size
        return piece.block_ids[first : last + 1].astype(np.int64)


class Rig:
    """One pool and cache, and engines of several step sizes over it.

    The engines are used in turns: one begins when the one before has nothing left to do.
    """

    __slots__ = ("_counted", "_engines", "_ledgers", "_subject", "cache", "recorder")

    def __init__(self, subject: Subject, num_blocks: int) -> None:
        self._subject = subject
        self.cache = PrefixCache(
            num_blocks=num_blocks,
            clock=_Ticks(),
            block_size=subject.block_size,
            policy=subject.policy,
        )
        self.recorder = StepRecorder(subject.make_runner(num_blocks), subject.block_size)
        self._engines: dict[int, Engine] = {}
        self._ledgers: dict[str, PublishedTokens] = {}
        self._counted = (0, 0)

    @property
    def block_size(self) -> int:
        return self._subject.block_size

    @property
    def limits(self) -> ModelLimits:
        return self._subject.limits

    @property
    def num_evictions(self) -> int:
        """Blocks evicted since ``take_counts``."""
        return self.cache.snapshot().num_evicted_blocks - self._counted[0]

    @property
    def num_preemptions(self) -> int:
        """Preemptions since ``take_counts``."""
        engines = self._engines.values()
        return sum(each.counters.num_preemptions for each in engines) - self._counted[1]

    def take_counts(self) -> tuple[int, int]:
        """Return evictions and preemptions, and count from zero again."""
        taken = self.num_evictions, self.num_preemptions
        self._counted = (self._counted[0] + taken[0], self._counted[1] + taken[1])
        return taken

    def engine(self, max_step_tokens: int = LARGE_STEP) -> Engine:
        """Return the engine that computes at most so many tokens in a step."""
        if max_step_tokens not in self._engines:
            subject = self._subject
            parts = EngineParts(
                cache=self.cache,
                runner=self.recorder,
                sampler=Sampler(subject.limits.vocab_size),
                fingerprint=subject.fingerprint,
                entropy=_no_entropy,
            )
            scheduler = SchedulerConfig(
                max_step_tokens=max_step_tokens,
                max_running=max(1, min(64, max_step_tokens - 1)),
            )
            config = EngineConfig(limits=subject.limits, scheduler=scheduler)
            self._engines[max_step_tokens] = Engine(parts, config)
        return self._engines[max_step_tokens]

    def ledger(self, name: str) -> PublishedTokens:
        """Return what was published in the domain of that name."""
        return self._ledgers.setdefault(name, PublishedTokens(self.block_size))

    def run(
        self, engine: Engine, prompt: TokenIds, params: SamplingParams, domain: str | None
    ) -> tuple[RequestOutput, ExpectedHit]:
        """Run one prompt alone, in a domain or, if that is None, without the cache."""
        expected = self.expect(domain, prompt)
        request_id = engine.submit(prompt, params, options=options_for(domain))
        [output] = run_all(engine, [request_id])
        self.publish(domain, prompt, output)
        return output, expected

    def expect(self, domain: str | None, prompt: TokenIds) -> ExpectedHit:
        return NOTHING if domain is None else self.ledger(domain).expect(prompt)

    def publish(self, domain: str | None, prompt: TokenIds, output: RequestOutput) -> None:
        """Note in the ledger what a finished request has published."""
        if domain is not None:
            # The last sampled token has no KV.
            self.ledger(domain).add([*prompt.tolist(), *output.token_ids[:-1]])

    def is_clean(self) -> bool:
        """Whether nothing is held any more and everything adds up."""
        try:
            for engine in self._engines.values():
                engine.check_invariants()
        except InvariantError:
            return False
        counts = self.cache.counts
        return counts.private == 0 and counts.shared == 0


def options_for(domain: str | None) -> RequestOptions:
    """Return options for a domain below ``verify``, or for no cache at all."""
    access: Access = NO_CACHE if domain is None else READ_WRITE
    return RequestOptions(domain=Domain(f"verify/{domain or 'cold'}"), access=access)


def run_all(engine: Engine, request_ids: Iterable[RequestId]) -> list[RequestOutput]:
    """Step until these requests have ended; return their outputs in order."""
    wanted = list(request_ids)
    done: dict[RequestId, RequestOutput] = {}
    while any(request_id not in done for request_id in wanted):
        for output in engine.step():
            done[output.request_id] = output
    return [done[request_id] for request_id in wanted]


class _Ticks:
    """A clock that advances by one at every look: real time has no part in this."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1.0
        return self._now


def _no_entropy() -> int:
    return 0
