"""Stepper: carries out one planned step and says what became of each request in it.

::

    execute -> sample -> per sequence: advance, add the token, perhaps end
          |
          `-- an exception: every request of the step fails, nothing of it is published
"""

from __future__ import annotations

import logging
from traceback import extract_tb

import torch

from prefold.engine.counters import EngineCounters
from prefold.engine.outbox import Outbox
from prefold.engine.parts import EngineParts
from prefold.engine.reply import Reply
from prefold.engine.request import FinishReason, RequestId
from prefold.engine.sampler import SampledRow
from prefold.engine.scheduler import Scheduler
from prefold.engine.step_draft import Advance, ScheduledStep
from prefold.errors import InvariantError

_log = logging.getLogger(__name__)


class Stepper:
    """Runs steps, and ends requests. Owned by the engine.

    Attributes:
        replies: What is kept of the open requests.
        outbox: What they have produced and nobody has taken yet.
    """

    __slots__ = ("_counters", "_parts", "_scheduler", "outbox", "replies")

    def __init__(
        self, parts: EngineParts, scheduler: Scheduler, counters: EngineCounters
    ) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._counters = counters
        self.replies: dict[RequestId, Reply] = {}
        self.outbox = Outbox()

    def step(self) -> None:
        """Plan a step and carry it out.

        Raises:
            InvariantError: There is a bug; nothing can be relied on any more.
        """
        step = self._scheduler.plan()
        if not step.advances:
            return
        self._note_admissions(step)
        try:
            logits = self._parts.runner.execute(step.plan)
            rows = self._sample(step, logits)
        except InvariantError:
            raise
        except Exception as error:  # noqa: BLE001 -- a step may fail, the engine goes on
            # Its message stays out of replies and logs: it could hold tokens. Where it
            # came from does not.
            frames = [f"{at.name}:{at.lineno}" for at in extract_tb(error.__traceback__)]
            _log.debug("a step failed with %s in %s", type(error).__name__, frames)
            self._fail(step, f"the step failed with {type(error).__name__}")
            return
        self._counters.num_steps += 1
        self._apply(step, logits, rows)

    def end(self, reply: Reply, reason: FinishReason, error: str | None = None) -> None:
        """End a request, whatever it is doing, and put its output into the outbox."""
        self._scheduler.end(reply.sequence)
        del self.replies[reply.sequence.request_id]
        reply.flush()
        self.outbox.add(reply.output(reason, self._parts.clock(), error))

    def _reply(self, advance: Advance) -> Reply:
        return self.replies[advance.sequence.request_id]

    def _note_admissions(self, step: ScheduledStep) -> None:
        now = self._parts.clock()
        for advance in step.advances:
            reply = self._reply(advance)
            if reply.admitted_at is None:
                reply.admitted_at = now

    def _sample(self, step: ScheduledStep, logits: torch.Tensor) -> list[SampledRow]:
        states = [self._reply(a).sampler_state for a in step.advances if a.is_sampled]
        return self._parts.sampler.sample_batch(logits, states) if states else []

    def _fail(self, step: ScheduledStep, error: str) -> None:
        self._counters.num_failed_steps += 1
        for advance in step.advances:
            self.end(self._reply(advance), FinishReason.FAILED, error)

    def _apply(
        self, step: ScheduledStep, logits: torch.Tensor, rows: list[SampledRow]
    ) -> None:
        now = self._parts.clock()
        next_row = 0
        for advance in step.advances:
            reply = self._reply(advance)
            if not advance.is_sampled:
                self._scheduler.advance(step, advance)
            else:
                row = rows[next_row]
                if row.token_id is None:
                    # What spoilt the logits may be in this step's KV as well, so
                    # nothing of it is published.
                    self.end(reply, FinishReason.FAILED, row.error)
                    next_row += 1
                    continue
                self._scheduler.advance(step, advance)
                self._add_token(reply, row.token_id, logits[next_row], now)
                next_row += 1
            reason = reply.finish_reason()
            if reason is not None:
                self.end(reply, reason)

    def _add_token(
        self, reply: Reply, token_id: int, logits: torch.Tensor, now: float
    ) -> None:
        self._counters.num_sampled_tokens += 1
        text = reply.add(token_id, logits, now)
        if reply.finish_reason() is not None:
            text += reply.flush()
        self.outbox.add_token(reply.sequence.request_id, token_id, text)
