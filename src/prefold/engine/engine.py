"""Engine: requests in, tokens and text out, one step at a time.

::

    submit -> [ plan -> execute -> sample -> advance -> outputs ] per step

One thread: whoever calls ``step`` does the work; a server can drive it from its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Self, Unpack

from prefold.cache import Approval, ApprovalId, ApprovalTerms, Lookup, Receipt
from prefold.engine import arguments
from prefold.engine.adapter_shelf import AdapterShelf
from prefold.engine.assembly import assemble
from prefold.engine.config import EngineConfig, RequestOptions
from prefold.engine.counters import EngineCounters
from prefold.engine.intake import Intake
from prefold.engine.joint_run import JointRun
from prefold.engine.model_settings import ModelArguments, ModelSettings
from prefold.engine.observer import EngineObserver, NoObserver
from prefold.engine.outbox import NewToken
from prefold.engine.parts import EngineParts
from prefold.engine.pinning import Pinner
from prefold.engine.prepared_model import (
    DEFAULT_DEADLINE_S,
    PreparedModel,
    prepare_swap,
    prepare_template,
)
from prefold.engine.prompt import Prompt
from prefold.engine.read_prompt import ReadPrompt
from prefold.engine.reception import Reception
from prefold.engine.request import FinishReason, RequestId, RequestOutput, SamplingParams
from prefold.engine.revocation import Revoker
from prefold.engine.scheduler import Scheduler
from prefold.engine.sidecar import Sidecar
from prefold.engine.stepper import Stepper
from prefold.engine.swapping import Swapper, SwapReceipt
from prefold.errors import (
    CapacityError,
    EngineStoppedError,
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
        self._stepper = Stepper(
            parts, self._scheduler, self.counters, self._sidecar, observer or NoObserver()
        )
        self._reception = Reception(self._scheduler, self._stepper, config.scheduler)
        self.swapper = Swapper(
            self._scheduler, self._stepper, config.limits, self._take_over
        )
        self.revoker = Revoker(self._stepper, parts.cache)
        self.pinner = Pinner(self._stepper, parts.cache)
        self._replies = self._stepper.replies
        self.adapters = AdapterShelf(parts.adapter_host, self._replies)
        self._intake = Intake(parts, config.limits, self._sidecar.width, self.adapters)
        self._outbox = self._stepper.outbox
        self._joint_run = JointRun(self._stepper, self.step, self.abort)
        self._is_closed = False

    @classmethod
    def from_pretrained(
        cls, path: str | os.PathLike[str] | None = None, **settings: Unpack[ModelArguments]
    ) -> Self:
        """Load a model from a directory or hub id, or the demo model, and make its engine.

        The arguments are those of ``ModelSettings``. For what was loaded, and how many
        tokens the cache holds, use ``assemble`` and ``Engine`` one after the other.

        Raises:
            ConfigError: The model or a setting cannot be used; one sentence.
        """
        assembly = assemble(path, ModelSettings(**settings))
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

    def check(
        self,
        prompt: Prompt,
        params: SamplingParams = _GREEDY,
        options: RequestOptions = _PLAIN_OPTIONS,
    ) -> None:
        """Refuse, with a ``RequestError``, what could never be served; change nothing."""
        arguments.check_types(params, options)
        self._intake.fit(self._intake.read(prompt), params, options.domain)

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
        return self._reception.fork(reply, num_forks)

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
        return bool(self._replies) or self._outbox.has_outputs or self.swapper.is_pending

    def step(self) -> list[RequestOutput]:
        """Compute one step; return the requests that have ended since the last one.

        Raises:
            EngineStoppedError: The engine was closed.
            InvariantError: There is a bug; the engine must not be used any more.
        """
        self._check_open()
        self._outbox.take_tokens()
        self.swapper.advance()
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
        jobs = zip([self._intake.read(prompt) for prompt in prompts], each, strict=True)
        submit = partial(self._submit, options=options, has_reply=True)
        return self._joint_run.run(partial(submit, *job) for job in jobs)

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
        submit = partial(self._submit, params=_GREEDY, options=options, has_reply=False)
        for output in self._joint_run.run(partial(submit, each) for each in encoded):
            if output.error is not None:
                raise CapacityError(output.error)
        return [self._lookup(prompt, options).num_hit_tokens for prompt in encoded]

    def lookup(self, prompt: Prompt, *, options: RequestOptions = _PLAIN_OPTIONS) -> Lookup:
        """Return what a prompt would hit at this moment. Has no effect.

        Raises:
            RequestError: The prompt could not be served.
        """
        arguments.check_options(options)
        return self._lookup(self._intake.read(prompt), options)

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
        read = self._intake.read(prompt)
        submit = partial(self._submit, read, _GREEDY, options, has_reply=False)
        [output] = self._joint_run.run([submit])
        if output.approval is None:
            raise CapacityError(output.error or "it was aborted before it was computed")
        return output.approval

    def withdraw(self, approval_id: ApprovalId) -> Receipt:
        """End an approval; see ``ByApproved``."""
        return self.cache.withdraw(approval_id)

    def approvals(self) -> tuple[Approval, ...]:
        """Return the approvals that hold, oldest first."""
        return self.cache.approved.approvals()

    # -- another model -------------------------------------------------------------

    def swap_model(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        drain: bool = True,
        deadline_s: float = DEFAULT_DEADLINE_S,
        position_offset: int | None = None,
        max_model_len: int | None = None,
    ) -> SwapReceipt:
        """Load another model, or this one's next version, by ``prepare_swap``, and swap.

        Raises:
            ConfigError: It cannot be used, or not without a restart; nothing was changed.
            SwapUnderWayError: Another swap waits already.
        """
        prepared = prepare_swap(
            self.parts, path, position_offset=position_offset, max_model_len=max_model_len
        )
        return self.swap(prepared, drain=drain, deadline_s=deadline_s)

    def swap(
        self,
        prepared: PreparedModel,
        *,
        drain: bool = True,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> SwapReceipt:
        """Let a prepared model take this one's place, stepping until it has.

        With ``drain`` requests that have begun may end first, for ``deadline_s`` seconds.
        Without, those that have no token of a reply begin anew. Others are aborted.

        Raises:
            ConfigError: It was prepared for another engine.
            SwapUnderWayError: Another swap waits already.
        """
        self._check_open()
        pending = self.swapper.begin(prepared, drain=drain, deadline_s=deadline_s)
        try:
            self._joint_run.until(lambda: pending.receipt is not None)
        finally:
            self.swapper.call_off(pending)
        return pending.done()

    def reload_template(self, template: str | None = None) -> SwapReceipt:
        """Take an edited chat template, or read it anew from where the model is.

        Requests that run just go on; nothing they leave behind is found by later ones.

        Raises:
            ConfigError: It is no template, or more than it was edited.
            SwapUnderWayError: The model is being replaced.
        """
        return self.swap(prepare_template(self.parts, self.config.limits, template))

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
        self.swapper.check_invariants()
        self.adapters.check_invariants()
        self._stepper.check_invariants()

    # -- inside --------------------------------------------------------------------

    def _take_over(self, prepared: PreparedModel) -> Intake:
        """Let everything here refer to another model."""
        parts = self.parts = prepared.parts
        self.config = replace(self.config, limits=prepared.limits)
        self.adapters.rebase(parts.adapter_host)
        self._intake = Intake(parts, prepared.limits, self._sidecar.width, self.adapters)
        return self._intake

    def _lookup(self, prompt: ReadPrompt, options: RequestOptions) -> Lookup:
        filed = self._intake.file(prompt, options.adapter)
        domain, access = options.domain, options.access
        return self.cache.lookup(filed.fingerprint, domain, filed.tokens, access=access)

    def _submit(
        self,
        prompt: ReadPrompt,
        params: SamplingParams,
        options: RequestOptions,
        *,
        has_reply: bool,
    ) -> RequestId:
        self._check_open()
        return self._reception.submit(
            self._intake, prompt, params, options, has_reply=has_reply
        )

    def _check_open(self) -> None:
        if self._stepper.is_broken:
            raise EngineStoppedError("the engine was cut off in mid-step; make a new one")
        if self._is_closed:
            raise EngineStoppedError("the engine was closed")
