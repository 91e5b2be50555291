"""Engine: requests in, tokens and text out, one step at a time.

::

    submit -> [ plan -> execute -> sample -> advance -> outputs ] per step

One thread: whoever calls ``step`` does the work. A server can drive it from a thread of
its own, with ``submit``, ``abort``, ``step`` and ``take_new_tokens``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Self

from prefold.blocks.table import TokenIds
from prefold.cache import (
    Approval,
    ApprovalId,
    ApprovalTerms,
    ByApproved,
    Lookup,
    Receipt,
    Selector,
)
from prefold.engine import arguments
from prefold.engine.admission import (
    check_approval,
    check_queue,
    check_running,
    no_room_for_forks,
)
from prefold.engine.assembly import ModelSettings, assemble
from prefold.engine.config import EngineConfig, RequestOptions
from prefold.engine.counters import EngineCounters
from prefold.engine.intake import Intake
from prefold.engine.observer import EngineObserver, NoObserver
from prefold.engine.outbox import NewToken
from prefold.engine.parts import EngineParts
from prefold.engine.prompt import Prompt
from prefold.engine.request import (
    FinishReason,
    RequestId,
    RequestOutput,
    SamplingParams,
)
from prefold.engine.scheduler import Scheduler
from prefold.engine.sequence import SequenceState
from prefold.engine.sidecar import Sidecar
from prefold.engine.stepper import Stepper
from prefold.engine.together import Together
from prefold.errors import (
    CapacityError,
    EngineStoppedError,
    InvariantError,
    OutOfBlocksError,
    RequestError,
)
from prefold.identity.domain import Domain

_PLAIN_OPTIONS = RequestOptions()
_GREEDY = SamplingParams()


class Engine:
    """Continuous batching over one model and one prefix cache. One thread.

    Every request that was submitted ends exactly once, with a ``RequestOutput`` from
    ``step``: stopped, at its length, aborted, or failed with a reason.

    Invariants: those of ``Scheduler`` and ``PrefixCache``; and a reply is kept for
    exactly the sequences that the scheduler has.
    """

    def __init__(
        self,
        parts: EngineParts,
        config: EngineConfig,
        observer: EngineObserver | None = None,
    ) -> None:
        self.cache = parts.cache
        self.config = config
        self.counters = EngineCounters()
        self.parts = parts
        self._sidecar = Sidecar(parts.cache, config.limits.vocab_size)
        self._scheduler = Scheduler(
            parts.cache, config.scheduler, self.counters, self._sidecar
        )
        self._intake = Intake(parts, config.limits, self._sidecar.width)
        self._stepper = Stepper(
            parts, self._scheduler, self.counters, self._sidecar, observer or NoObserver()
        )
        self._replies = self._stepper.replies
        self._outbox = self._stepper.outbox
        self._together = Together(self._stepper, self.step)
        self._is_closed = False

    @classmethod
    def from_pretrained(  # noqa: PLR0913 -- what people type, all but one by name
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        cache_memory: str | int | None = None,
        cache_blocks: int | None = None,
        block_size: int = 16,
        dtype: str = "float32",
        kv_dtype: str | None = None,
        max_model_len: int | None = None,
        num_threads: int | None = None,
        device: str = "cpu",
        position_offset: int = 0,
    ) -> Self:
        """Load a model from a directory or hub id, or the demo model, and make its engine.

        The arguments are those of ``ModelSettings``. For what was loaded, and how many
        tokens the cache holds, use ``assemble`` and ``Engine`` one after the other.

        Raises:
            ConfigError: The model or a setting cannot be used; one sentence.
        """
        settings = ModelSettings(
            cache_memory=cache_memory,
            cache_blocks=cache_blocks,
            block_size=block_size,
            dtype=dtype,
            kv_dtype=kv_dtype,
            max_model_len=max_model_len,
            num_threads=num_threads,
            device=device,
            position_offset=position_offset,
        )
        assembly = assemble(path, settings)
        return cls(assembly.parts, assembly.config)

    # -- requests ------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        *,
        options: RequestOptions = _PLAIN_OPTIONS,
    ) -> RequestId:
        """Queue a request.

        Raises:
            RequestError: It can never be served; the message says what to change.
            QueueFullError: Too many are waiting already.
            EngineStoppedError: The engine was closed.
        """
        return self._submit(self._intake.read(prompt), params, options, has_reply=True)

    def check(self, prompt: Prompt, params: SamplingParams = _GREEDY) -> None:
        """Refuse what could never be served, and change nothing.

        Raises:
            RequestError: The message says what to change.
        """
        arguments.check_types(params, _PLAIN_OPTIONS)
        self._intake.fit(self._intake.read(prompt), params)

    def abort(self, request_id: RequestId) -> bool:
        """End a request now, for the next ``step`` to return; say if it was open.

        Raises:
            RequestError: That can be no request's id.
        """
        arguments.check_request_id(request_id)
        reply = self._replies.get(request_id)
        if reply is None:
            return False
        self._stepper.end(reply, FinishReason.ABORTED)
        return True

    def fork(self, request_id: RequestId, num_forks: int = 1) -> list[RequestId]:
        """Let copies of an open request go on independently from where it is.

        They share everything computed so far. Each draws from its own random stream.

        Raises:
            RequestError: There is no such open request, or fewer than one fork.
            CapacityError: There is no room now; nothing was changed.
        """
        arguments.check_request_id(request_id)
        arguments.check_num_forks(num_forks)
        reply = self._replies.get(request_id)
        if reply is None:
            raise RequestError("there is no open request with this id")
        parent = reply.sequence
        scheduler, config = self._scheduler, self.config.scheduler
        if parent.state is SequenceState.RUNNING:
            check_running(len(scheduler.running), num_forks, config)
        else:
            check_queue(len(scheduler.queue), num_forks, config)
        twins = [self._intake.branch(parent) for _ in range(num_forks)]
        try:
            scheduler.branch(parent, twins, self.parts.runner.copy_blocks)
        except OutOfBlocksError as error:
            raise no_room_for_forks(num_forks, error) from error
        now = self.parts.clock()
        forks = {t.request_id: reply.fork(t, i, now) for i, t in enumerate(twins)}
        self._replies.update(forks)
        return list(forks)

    # -- steps ---------------------------------------------------------------------

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._replies)

    @property
    def num_cache_tokens(self) -> int:
        """Tokens that fit into the cache's blocks, those of running requests included."""
        return self.cache.num_blocks * self.cache.block_size

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to compute or to hand out."""
        return bool(self._replies) or self._outbox.has_outputs

    def step(self) -> list[RequestOutput]:
        """Compute one step; return the requests that have ended since the last one.

        Raises:
            EngineStoppedError: The engine was closed.
            InvariantError: There is a bug; the engine must not be used any more.
        """
        self._check_open()
        self._outbox.take_tokens()
        self._stepper.step()
        return self._outbox.take()

    def take_new_tokens(self) -> list[NewToken]:
        """Return the tokens of the last step and forget them.

        The last token of a request comes with all text that was still held back.
        """
        return self._outbox.take_tokens()

    # -- convenience ---------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = _GREEDY,
        *,
        options: RequestOptions = _PLAIN_OPTIONS,
    ) -> list[RequestOutput]:
        """Run prompts together to their end; return the outputs in their order.

        If anything interrupts it, none of them stays behind, or the engine refuses all
        further calls. Outputs of other requests come from the next ``step``.

        Raises:
            RequestError: A prompt can never be served, or there are as many ``params``
                as prompts not; none was run.
        """
        arguments.check_prompts("generate", prompts)
        each = arguments.params_of_each(params, len(prompts))
        jobs = list(zip(map(self._intake.read, prompts), each, strict=True))
        return self._run_together(jobs, options, has_reply=True)

    def warm(
        self, prompts: Sequence[Prompt], *, options: RequestOptions = _PLAIN_OPTIONS
    ) -> list[int]:
        """Compute prompts without a reply, so that later requests hit them.

        Returns how many tokens of each prompt a request with the same prompt would now
        hit; fewer than all where there was no room to keep them.

        Raises:
            RequestError: A prompt can never be served; none was run.
            CapacityError: A prompt's computation failed.
        """
        arguments.check_prompts("warm", prompts)
        encoded = [self._intake.read(prompt) for prompt in prompts]
        jobs = [(token_ids, _GREEDY) for token_ids in encoded]
        for output in self._run_together(jobs, options, has_reply=False):
            if output.error is not None:
                raise CapacityError(output.error)
        return [
            self.lookup(token_ids, options=options).num_hit_tokens for token_ids in encoded
        ]

    def lookup(self, prompt: Prompt, *, options: RequestOptions = _PLAIN_OPTIONS) -> Lookup:
        """Return what a prompt would hit at this moment. Has no effect.

        Raises:
            RequestError: The prompt could not be served.
        """
        arguments.check_options(options)
        return self.cache.lookup(
            self.parts.fingerprint,
            options.domain,
            self._intake.read(prompt),
            access=options.access,
        )

    # -- sharing -------------------------------------------------------------------

    def approve(
        self,
        prompt: Prompt,
        *,
        domain: Domain,
        label: str,
        pinned: bool = False,
        ttl_s: float | None = None,
    ) -> Approval:
        """Compute a prompt and let all requests at and below ``domain`` share it.

        Its whole blocks, that is. Who steps the engine sets ``RequestOptions.approval``.

        Raises:
            InvalidInputError: It can never be, or not beside an approval that holds.
            CapacityError: Its computation failed, or too much would be pinned.
        """
        terms = ApprovalTerms(label=label, pinned=pinned, ttl_s=ttl_s)
        options = RequestOptions(domain=domain, approval=terms)
        job = (self._intake.read(prompt), _GREEDY)
        [output] = self._run_together([job], options, has_reply=False)
        if output.approval is None:
            raise CapacityError(output.error or "it was aborted before it was computed")
        return output.approval

    def withdraw(self, approval_id: ApprovalId) -> Receipt:
        """End an approval; see ``ByApproved``."""
        return self.invalidate(ByApproved(approval_id=approval_id))

    def approvals(self) -> tuple[Approval, ...]:
        """Return the approvals that hold, oldest first."""
        return self.cache.approved.approvals()

    def invalidate(self, selector: Selector) -> Receipt:
        """Make what a selector covers unfindable; see ``PrefixCache.invalidate``."""
        return self.cache.invalidate(selector)

    def close(self) -> None:
        """Abort everything and take no more requests. May be called twice."""
        if not self._stepper.is_broken:
            for request_id in list(self._replies):
                self.abort(request_id)
        self._outbox.take()
        self._is_closed = True

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if requests, sequences, leases and blocks disagree."""
        self._scheduler.check_invariants()
        self._sidecar.check_invariants()
        known = {reply.sequence for reply in self._replies.values()}
        held = {*self._scheduler.running, *self._scheduler.queue.sequences()}
        if known != held:
            raise InvariantError("replies and scheduled sequences disagree")

    # -- inside --------------------------------------------------------------------

    def _submit(
        self,
        token_ids: TokenIds,
        params: SamplingParams,
        options: RequestOptions,
        *,
        has_reply: bool,
    ) -> RequestId:
        self._check_open()
        arguments.check_types(params, options)
        if options.approval is not None:
            has_reply = False
            check_approval(self.parts, options.domain, token_ids, options.approval)
        max_tokens = self._intake.fit(token_ids, params if has_reply else None)
        check_queue(len(self._scheduler.queue), 1, self.config.scheduler)
        reply = self._intake.open(token_ids, params, max_tokens, options)
        request_id = reply.sequence.request_id
        with self._stepper.unbroken():
            self._scheduler.add(reply.sequence)
            self._replies[request_id] = reply
        return request_id

    def _check_open(self) -> None:
        if self._stepper.is_broken:
            raise EngineStoppedError("the engine was cut off in mid-step; make a new one")
        if self._is_closed:
            raise EngineStoppedError("the engine was closed")

    def _run_together(
        self,
        jobs: list[tuple[TokenIds, SamplingParams]],
        options: RequestOptions,
        *,
        has_reply: bool,
    ) -> list[RequestOutput]:
        return self._together.run(
            partial(self._submit, token_ids, params, options, has_reply=has_reply)
            for token_ids, params in jobs
        )
