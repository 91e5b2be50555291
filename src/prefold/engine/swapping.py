"""Swapping: another model takes the place of the one that runs.

::

    prepare_swap     loads and checks it, on any thread, while steps go on
        |
    Swapper.begin    nobody new is admitted; who runs goes on with the old model
        |
    the switch       between two steps, when nobody runs any more, or at the deadline

A sequence keeps the model that it was admitted with. Whatever never ran, or is computed
anew, gets the new one; what was cached under the old one is not found any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from prefold.cache import ByFingerprint, Receipt
from prefold.engine.config import ModelLimits
from prefold.engine.intake import Intake
from prefold.engine.prepared_model import PreparedModel
from prefold.engine.reply import Reply
from prefold.engine.request import FinishReason
from prefold.engine.scheduler import Scheduler
from prefold.engine.sequence import Sequence, SequenceState
from prefold.engine.stepper import Stepper
from prefold.errors import ConfigError, InvariantError, SwapUnderWayError
from prefold.identity.fingerprint import Fingerprint

_NO_ADAPTER = (
    "the model was replaced by one that the request's adapter does not fit; send the "
    "request again"
)

#: Fields of a fingerprint that do not shape what is computed of given tokens.
_NO_MATTER = frozenset({"chat_template"})

_NOT_APPROVED = (
    "the model or its chat template was replaced before the prefix was approved; send the "
    "request again"
)
_OTHER_CONTENTS = (
    "the model was replaced by one to which the prompt's images or embeddings mean "
    "something else; send the request again"
)
_REPLACED = "the model was replaced before the reply was complete; send the request again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapReceipt:
    """What a swap did. It holds from the moment it is there.

    Attributes:
        fingerprint: What later requests are computed under.
        differing_fields: Of the fingerprint; none if the model is what it was, and
            everything cached is still good.
        invalidation: What was dropped of the old fingerprint; None if it is the same.
        num_ended: Requests that could not be finished, each with a sentence.
        num_recomputed: Requests that had begun and begin anew.
    """

    fingerprint: Fingerprint
    differing_fields: tuple[str, ...]
    invalidation: Receipt | None
    num_ended: int = 0
    num_recomputed: int = 0


class PendingSwap:
    """A swap that waits for running requests to end.

    Attributes:
        receipt: None until the switch.
    """

    __slots__ = ("deadline", "prepared", "receipt")

    def __init__(self, prepared: PreparedModel, deadline: float) -> None:
        self.prepared = prepared
        self.deadline = deadline
        self.receipt: SwapReceipt | None = None

    def done(self) -> SwapReceipt:
        """Return the receipt of a swap that is done."""
        if self.receipt is None:
            raise InvariantError("a swap that has not happened was taken for one that has")
        return self.receipt


class Swapper:
    """Replaces the model under open requests. Owned by the engine; one thread.

    Args:
        scheduler: Who runs and who waits.
        stepper: Whose parts are replaced.
        switch: Makes everything else refer to the new model, and returns what takes
            requests in for it.

    Invariants:
        - a sequence that never ran has the fingerprint of the model that would run it
        - one that runs, or is to go on, differs from it in the chat template at most,
          which does not shape what is computed of its tokens
    """

    __slots__ = ("_limits", "_pending", "_scheduler", "_stepper", "_switch")

    def __init__(
        self,
        scheduler: Scheduler,
        stepper: Stepper,
        limits: ModelLimits,
        switch: Callable[[PreparedModel], Intake],
    ) -> None:
        self._scheduler = scheduler
        self._stepper = stepper
        self._limits = limits
        self._switch = switch
        self._pending: PendingSwap | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a swap waits for running requests to end."""
        return self._pending is not None

    def begin(
        self, prepared: PreparedModel, *, drain: bool, deadline_s: float
    ) -> PendingSwap:
        """Begin to swap; without anything to wait for, it is done on return.

        Where nothing differs but the chat template, nobody needs to wait or to end.

        Raises:
            ConfigError: The model was prepared for another engine, or the deadline is
                no time.
            SwapUnderWayError: Another swap waits already.
        """
        if self._pending is not None:
            raise SwapUnderWayError(
                "the model is being replaced already; wait until that is done"
            )
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
            raise ConfigError("deadline_s must be a number of seconds")
        if math.isnan(deadline_s) or deadline_s < 0:
            raise ConfigError(f"deadline_s must be at least 0, got {deadline_s}")
        parts = self._stepper.parts
        if prepared.parts.cache is not parts.cache:
            raise ConfigError("the model was prepared for another engine; prepare it again")
        if prepared.base not in (None, parts.fingerprint):
            raise ConfigError(
                "the model was prepared to replace one that is not served any more; "
                "prepare it again"
            )
        pending = PendingSwap(prepared, parts.clock() + deadline_s)
        if self._computes_the_same(prepared):
            pending.receipt = self._rename(prepared)
        elif drain:
            self._pending = pending
            self._scheduler.admits_new = False
            self.advance()
        else:
            with self._stepper.unbroken():
                num_ended = self._end(r for r in self._begun() if r.sequence.is_bound)
                num_recomputed = sum(_has_run(r.sequence) for r in self._begun())
                for sequence in tuple(self._scheduler.running):
                    self._scheduler.preempt(sequence)
                pending.receipt = self._replace(
                    prepared, num_ended=num_ended, num_recomputed=num_recomputed
                )
        return pending

    def advance(self) -> None:
        """Switch if it is time. Called between two steps."""
        pending = self._pending
        if pending is None:
            return
        begun = self._begun()
        if begun and self._stepper.parts.clock() < pending.deadline:
            return
        with self._stepper.unbroken():
            num_ended = self._end(begun)
            self.call_off(pending)
            pending.receipt = self._replace(pending.prepared, num_ended=num_ended)

    def call_off(self, pending: PendingSwap) -> None:
        """Forget a swap that has not happened; everything stays as it was."""
        if pending is self._pending:
            self._pending = None
            self._scheduler.admits_new = True

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a sequence is computed by a model not its own."""
        current = self._stepper.parts.fingerprint
        for sequence in (r.sequence for r in self._stepper.replies.values()):
            changed = set(current.diff(sequence.fingerprint.of_model))
            if changed and (_is_new(sequence) or changed - _NO_MATTER):
                raise InvariantError("a sequence is computed by a model not its own")
        if self._scheduler.admits_new == self.is_pending:
            raise InvariantError("new requests are held up without a swap, or not by it")

    def _begun(self) -> list[Reply]:
        """Return the requests that have a model: all whose answer has begun."""
        return [r for r in self._stepper.replies.values() if not _is_new(r.sequence)]

    def _approving(self) -> list[Reply]:
        # Their tokens were read for the model before, and nobody would send them again.
        replies = self._stepper.replies.values()
        return [r for r in replies if r.sequence.options.approval is not None]

    def _computes_the_same(self, prepared: PreparedModel) -> bool:
        """Tell whether given tokens would come to the same KV and the same reply."""
        changed = self._stepper.parts.fingerprint.diff(prepared.parts.fingerprint)
        return not set(changed) - _NO_MATTER and prepared.limits == self._limits

    def _rename(self, prepared: PreparedModel) -> SwapReceipt:
        """Let later requests have another fingerprint; those that began just go on."""
        if prepared.parts.fingerprint == self._stepper.parts.fingerprint:
            return SwapReceipt(
                fingerprint=prepared.parts.fingerprint,
                differing_fields=(),
                invalidation=None,
            )
        with self._stepper.unbroken():
            return self._replace(prepared, keeps_begun=True)

    def _end(self, replies: Iterable[Reply], why: str = _REPLACED) -> int:
        ended = list(replies)
        for reply in ended:
            self._stepper.end(reply, FinishReason.ABORTED, why)
        return len(ended)

    def _replace(
        self,
        prepared: PreparedModel,
        *,
        num_ended: int = 0,
        num_recomputed: int = 0,
        keeps_begun: bool = False,
    ) -> SwapReceipt:
        old, old_limits = self._stepper.parts.fingerprint, self._limits
        cache, limits = prepared.parts.cache, prepared.limits
        new = prepared.parts.fingerprint
        self._limits = limits
        self._stepper.parts = prepared.parts
        intake = self._switch(prepared)
        invalidation = None
        if new != old:
            cache.cost.forget()
            num_ended += self._end(self._approving(), _NOT_APPROVED)
            invalidation = cache.invalidate(
                ByFingerprint(fingerprint=old, with_adapters=True)
            )
        other_ids = new.tokenizer != old.tokenizer or (
            limits.vocab_size != old_limits.vocab_size
        )
        if keeps_begun:
            for kept in self._begun():
                _let_leave_nothing(kept.sequence)
        for sequence in tuple(self._scheduler.queue.sequences()):
            if keeps_begun and not _is_new(sequence):
                continue
            reply = self._stepper.replies[sequence.request_id]
            why = _misfit(sequence, prepared, other_ids=other_ids)
            if sequence.content is not None and set(new.diff(old)) - _NO_MATTER:
                why = _OTHER_CONTENTS
            if why is None:
                intake.renew(reply)
            else:
                num_recomputed -= _has_run(sequence)
                num_ended += self._end([reply], why)
        return SwapReceipt(
            fingerprint=new,
            differing_fields=old.diff(new),
            invalidation=invalidation,
            num_ended=num_ended,
            num_recomputed=num_recomputed,
        )


def _has_run(sequence: Sequence) -> bool:
    return sequence.state is not SequenceState.QUEUED


def _is_new(sequence: Sequence) -> bool:
    # An answer of several replies is of one model, so they begin together.
    return not (_has_run(sequence) or sequence.is_of_begun_answer)


def _let_leave_nothing(sequence: Sequence) -> None:
    """Let a request go on under the old fingerprint, with leases to come as well."""
    options = sequence.options
    access = replace(options.access, write=False)
    sequence.options = replace(options, access=access)


def _misfit(sequence: Sequence, prepared: PreparedModel, *, other_ids: bool) -> str | None:
    """Say why a request cannot be computed by the new model, or return None."""
    limits, host = prepared.limits, prepared.parts.adapter_host
    adapter = sequence.adapter
    if adapter is not None and (host is None or adapter.misfit(host) is not None):
        return _NO_ADAPTER
    if other_ids:
        return (
            "the model was replaced by one with another tokenizer, to which the prompt's "
            "token ids mean something else; send the request again"
        )
    num_prompt = sequence.num_prompt_tokens
    if sequence.max_tokens > limits.max_model_len or num_prompt >= limits.max_model_len:
        return (
            f"the model was replaced by one that takes {limits.max_model_len} tokens for "
            "prompt and reply; send the request again with fewer"
        )
    return None
