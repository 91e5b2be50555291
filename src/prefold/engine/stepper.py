"""Stepper: carries out one planned step and says what became of each request in it.

::

    execute -> sample -> per sequence: advance, add the token, perhaps end
          |
          `-- an exception: every request of the step fails, nothing of it is published
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from traceback import extract_tb

import numpy as np
import torch

from prefold.blocks.table import num_blocks_for
from prefold.cache import Approval
from prefold.engine.counters import EngineCounters
from prefold.engine.logprobs import LogprobRows, measure_rows
from prefold.engine.observer import EngineObserver, UsedPath
from prefold.engine.outbox import NewToken, Outbox
from prefold.engine.parts import EngineParts
from prefold.engine.reply import Reply
from prefold.engine.request import FinishReason, RequestId
from prefold.engine.sampler import UNUSABLE, SampledRow
from prefold.engine.scheduler import Scheduler
from prefold.engine.sequence import Sequence
from prefold.engine.sidecar import Sidecar
from prefold.engine.step_draft import Advance, ScheduledStep
from prefold.errors import InvariantError, PrefoldError, UnusableStepError
from prefold.eviction.cost import num_pairs

_log = logging.getLogger(__name__)

_NO_TEXT = "the model chose a token that its tokenizer cannot turn into text"


class Stepper:
    """Runs steps, and ends requests. Owned by the engine.

    Attributes:
        parts: What steps are carried out with; changed between two steps only.
        replies: What is kept of the open requests.
        outbox: What they have produced and nobody has taken yet.
        is_broken: Whether the bookkeeping was cut off half-way, by an interrupt or by a
            bug: nothing can be relied on any more.
    """

    __slots__ = (
        "_counters",
        "_observer",
        "_scheduler",
        "_sidecar",
        "is_broken",
        "outbox",
        "parts",
        "replies",
    )

    def __init__(
        self,
        parts: EngineParts,
        scheduler: Scheduler,
        counters: EngineCounters,
        sidecar: Sidecar,
        observer: EngineObserver,
    ) -> None:
        self.parts = parts
        self._sidecar = sidecar
        self._observer = observer
        self._scheduler = scheduler
        self._counters = counters
        self.replies: dict[RequestId, Reply] = {}
        self.outbox = Outbox()
        self.is_broken = False

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Note if what is done inside, which must be done wholly, is cut off."""
        try:
            yield
        except PrefoldError:
            raise
        except BaseException:
            self.is_broken = True
            raise

    def step(self) -> None:
        """Plan a step and carry it out.

        Raises:
            InvariantError: There is a bug; nothing can be relied on any more.
        """
        with self.unbroken():
            step = self._scheduler.plan()
            started_at = self.parts.clock()
            self._note_admissions(step, started_at)
        if not step.advances:
            return
        try:
            # May be interrupted: nothing has happened to a sequence before it is done.
            logits = self.parts.runner.execute(step.plan)
        except InvariantError:
            raise
        except UnusableStepError as error:
            self._counters.num_failed_steps += 1
            for index in error.indices:
                self.end(self._reply(step.advances[index]), FinishReason.FAILED, UNUSABLE)
            return
        except Exception as error:  # noqa: BLE001 -- a step may fail, the engine goes on
            # Its message stays out of replies and logs: it could hold tokens. Where it
            # came from does not.
            frames = [f"{at.name}:{at.lineno}" for at in extract_tb(error.__traceback__)]
            _log.debug("a step failed with %s in %s", type(error).__name__, frames)
            self._fail(step, f"the step failed with {type(error).__name__}")
            return
        self._counters.num_steps += 1
        with self.unbroken():
            self._apply(step, logits, self._sample(step, logits))
        num_tokens = sum(advance.end - advance.start for advance in step.advances)
        pairs = sum(num_pairs(advance.start, advance.end) for advance in step.advances)
        seconds = self.parts.clock() - started_at
        self.parts.cache.cost.note_step(seconds, num_tokens, pairs)
        self._observer.on_step(seconds, num_tokens)

    def end(self, reply: Reply, reason: FinishReason, error: str | None = None) -> None:
        """End a request, whatever it is doing, and put its output into the outbox.

        One that approves does so now, if it was computed to the end: what it has
        committed is still held.
        """
        with self.unbroken():
            approval: Approval | None = None
            if reply.sequence.options.approval is not None and error is None:
                try:
                    approval = self._approve(reply, reason)
                except PrefoldError as problem:
                    reason, error = FinishReason.FAILED, str(problem)
            if reply.sequence.options.joint is not None:
                reply.sequence.options.joint.has_result = True
            used = self._used(reply.sequence)
            self._scheduler.end(reply.sequence)
            del self.replies[reply.sequence.request_id]
            if not _try_flush(reply) and error is None:
                reason, error = FinishReason.FAILED, _NO_TEXT
            rest = reply.end_tokens()
            output = reply.output(reason, self.parts.clock(), error)
            if approval is not None:
                output = replace(output, approval=approval)
            self.outbox.add(output, rest)
            self._observer.on_finished(output, reply.sequence.options)
            if used is not None:
                self._observer.on_used(used)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless exactly what is scheduled has a reply."""
        known = {reply.sequence for reply in self.replies.values()}
        if known != {*self._scheduler.running, *self._scheduler.queue.sequences()}:
            raise InvariantError("replies and scheduled sequences disagree")

    def _used(self, sequence: Sequence) -> UsedPath | None:
        """Return what a sequence that is about to end has used; None if that is nothing."""
        is_told = (
            sequence.miss is not None
            and not sequence.access.approves
            and sequence.fingerprint.of_model == self.parts.fingerprint
        )
        if not is_told:
            return None
        return UsedPath(
            tokens=sequence.tokens,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached,
            # A preempted one has left behind what it had computed.
            num_computed_tokens=max(sequence.num_computed, sequence.num_restored),
            domain=sequence.options.domain,
            access=sequence.access,
            fingerprint=sequence.fingerprint,
        )

    def _approve(self, reply: Reply, reason: FinishReason) -> Approval | None:
        sequence = reply.sequence
        terms = sequence.options.approval
        if terms is None or reason is not FinishReason.LENGTH:
            return None
        # A pin must leave every open request what it was promised at its submission.
        return self.parts.cache.approve(
            sequence.held_lease,
            sequence.num_prompt_tokens,
            terms,
            num_kept=self.num_promised_blocks(besides=reply),
        )

    def num_promised_blocks(self, besides: Reply | None = None) -> int:
        """Return how many blocks the largest open request needs, besides one."""
        others = (it.sequence for it in self.replies.values() if it is not besides)
        num_tokens = max((other.max_num_tokens for other in others), default=0)
        return num_blocks_for(num_tokens, self.parts.cache.block_size)

    def _reply(self, advance: Advance) -> Reply:
        return self.replies[advance.sequence.request_id]

    def _note_admissions(self, step: ScheduledStep, now: float) -> None:
        for advance in step.advances:
            reply = self._reply(advance)
            if reply.admitted_at is None:
                reply.admitted_at = now

    def _sample(self, step: ScheduledStep, logits: torch.Tensor) -> list[SampledRow]:
        states = [self._reply(a).sampler_state for a in step.advances if a.is_sampled]
        if len(states) < len(logits):
            # The others are of prompts whose log-probabilities are wanted.
            last = np.cumsum([piece.num_logits for piece in step.plan.slices]) - 1
            logits = logits[last[[advance.is_sampled for advance in step.advances]]]
        return self.parts.sampler.sample_batch(logits, states) if states else []

    def _fail(self, step: ScheduledStep, error: str) -> None:
        self._counters.num_failed_steps += 1
        for advance in step.advances:
            self.end(self._reply(advance), FinishReason.FAILED, error)

    def _apply(
        self, step: ScheduledStep, logits: torch.Tensor, rows: list[SampledRow]
    ) -> None:
        now = self.parts.clock()
        sampled = iter(rows)
        end_row = 0
        for advance, piece in zip(step.advances, step.plan.slices, strict=True):
            reply = self._reply(advance)
            own = logits[end_row : end_row + piece.num_logits]
            end_row += piece.num_logits
            row = next(sampled) if advance.is_sampled else None
            known = self._measure_prompt(advance, own)
            if (row is not None and row.token_id is None) or not _is_usable(known):
                # What spoilt the logits may be in this step's KV as well, so nothing
                # of it is published.
                self.end(reply, FinishReason.FAILED, UNUSABLE)
                continue
            self._scheduler.advance(step, advance)
            self._keep_prompt(advance, known)
            if row is not None and row.token_id is not None:
                tokens = _try_add(reply, row.token_id, own[-1], now)
                if tokens is None:
                    self.end(reply, FinishReason.FAILED, _NO_TEXT)
                    continue
                self._counters.num_sampled_tokens += 1
                self.outbox.add_tokens(tokens)
            reason = reply.finish_reason()
            if reason is not None:
                self.end(reply, reason)

    def _measure_prompt(self, advance: Advance, logits: torch.Tensor) -> LogprobRows | None:
        """Return the log-probabilities of the prompt tokens that a share leads to."""
        sequence = advance.sequence
        if sequence.prompt_logprobs is None:
            return None
        # The last token's logits belong to a token that is not part of the prompt.
        num_rows = min(advance.end, sequence.num_prompt_tokens - 1) - advance.start
        if num_rows < 1 or len(logits) < num_rows:
            return None
        first = advance.start + 1
        token_ids = sequence.token_ids(first, first + num_rows)
        return measure_rows(logits[:num_rows], token_ids, sequence.prompt_logprobs.width)

    def _keep_prompt(self, advance: Advance, rows: LogprobRows | None) -> None:
        known = advance.sequence.prompt_logprobs
        if known is None:
            return
        if rows is not None:
            known.add(advance.start + 1, rows)
        block_ids = advance.sequence.held_lease.block_ids
        self._sidecar.keep(known, block_ids, advance.start, advance.end)


def _try_add(
    reply: Reply, token_id: int, logits: torch.Tensor, now: float
) -> list[NewToken] | None:
    """Add a token; return None if the tokenizer cannot make text of it."""
    try:
        return reply.add(token_id, logits, now)
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001 -- the tokenizer's, and one request's alone
        _log.debug("a token could not be decoded: %s", type(error).__name__)
        return None


def _try_flush(reply: Reply) -> bool:
    try:
        reply.flush()
    except InvariantError:
        raise
    except Exception as error:  # noqa: BLE001 -- as above
        _log.debug("tokens could not be decoded: %s", type(error).__name__)
        return False
    return True


def _is_usable(rows: LogprobRows | None) -> bool:
    return rows is None or bool(np.isfinite(rows.chosen).all())
