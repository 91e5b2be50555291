"""Reception: takes checked requests in, and copies of open ones."""

from __future__ import annotations

from prefold.engine import arguments
from prefold.engine.admission import (
    check_approval,
    check_queue,
    check_running,
    no_room_for_forks,
)
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.intake import Intake, request_id_of
from prefold.engine.read_prompt import ReadPrompt
from prefold.engine.reply import Reply
from prefold.engine.request import RequestId, SamplingParams
from prefold.engine.scheduler import Scheduler
from prefold.engine.sequence import SequenceState
from prefold.engine.stepper import Stepper
from prefold.errors import OutOfBlocksError, RequestError


class Reception:
    """Gives requests their number and place. Owned by the engine.

    Args:
        scheduler: Who takes their sequences in.
        stepper: Who keeps their replies.
        config: How many may wait and run.
    """

    __slots__ = ("_config", "_num_arrivals", "_scheduler", "_stepper")

    def __init__(
        self, scheduler: Scheduler, stepper: Stepper, config: SchedulerConfig
    ) -> None:
        self._scheduler = scheduler
        self._stepper = stepper
        self._config = config
        self._num_arrivals = 0

    def submit(
        self,
        intake: Intake,
        prompt: ReadPrompt,
        params: SamplingParams,
        options: RequestOptions,
        *,
        has_reply: bool,
    ) -> RequestId:
        """Queue a request.

        Raises:
            RequestError: It can never be served.
            QueueFullError: Too many are waiting already.
        """
        arguments.check_types(params, options)
        if options.approval is not None:
            has_reply = False
            if prompt.content is not None:
                raise RequestError(
                    "a prefix with images or embeddings cannot be approved; approve the "
                    "text before them"
                )
            filed = intake.file(prompt, options.adapter)
            if filed.item is not None:
                raise RequestError(
                    "what an adapter adds in the middle of a prompt cannot be approved; "
                    "approve what is before it, for the model itself"
                )
            ids, terms, cache = (
                prompt.token_ids,
                options.approval,
                self._stepper.parts.cache,
            )
            check_approval(cache, filed.fingerprint, options.domain, ids, terms)
        max_tokens = intake.fit(prompt, params if has_reply else None, options.domain)
        check_queue(len(self._scheduler.queue), 1, self._config)
        reply = intake.open(self._next_arrival(), prompt, params, max_tokens, options)
        request_id = reply.sequence.request_id
        with self._stepper.unbroken():
            self._scheduler.add(reply.sequence)
            self._stepper.replies[request_id] = reply
        return request_id

    def fork(self, reply: Reply, num_forks: int) -> list[RequestId]:
        """Let copies of an open request go on independently.

        Raises:
            CapacityError: There is no room now; nothing was changed.
        """
        parent, scheduler = reply.sequence, self._scheduler
        if parent.state is SequenceState.RUNNING:
            check_running(len(scheduler.running), num_forks, self._config)
        else:
            check_queue(len(scheduler.queue), num_forks, self._config)
        twins = []
        for _ in range(num_forks):
            arrival = self._next_arrival()
            twins.append(parent.branch(request_id_of(arrival), arrival))
        parts = self._stepper.parts
        try:
            scheduler.branch(parent, twins, parts.runner.copy_blocks)
        except OutOfBlocksError as error:
            raise no_room_for_forks(num_forks, error) from error
        now = parts.clock()
        forks = {t.request_id: reply.fork(t, i, now) for i, t in enumerate(twins)}
        self._stepper.replies.update(forks)
        return list(forks)

    def _next_arrival(self) -> int:
        self._num_arrivals += 1
        return self._num_arrivals
