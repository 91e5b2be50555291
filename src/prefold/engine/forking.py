"""Forking: copies of an open request, which go on independently from where it is."""

from __future__ import annotations

from prefold.engine.admission import check_queue, check_running, no_room_for_forks
from prefold.engine.config import SchedulerConfig
from prefold.engine.intake import Intake, request_id_of
from prefold.engine.parts import EngineParts
from prefold.engine.reply import Reply
from prefold.engine.request import RequestId
from prefold.engine.scheduler import Scheduler
from prefold.engine.sequence import SequenceState
from prefold.errors import OutOfBlocksError


class Forking:
    """Opens the replies of forks. Owned by the engine; keeps nothing of them."""

    __slots__ = ("_config", "_intake", "_parts", "_scheduler")

    def __init__(
        self,
        parts: EngineParts,
        scheduler: Scheduler,
        intake: Intake,
        config: SchedulerConfig,
    ) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._intake = intake
        self._config = config

    def fork(self, reply: Reply, num_forks: int) -> dict[RequestId, Reply]:
        """Return the replies of forks, whose sequences are scheduled.

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
            arrival = self._intake.next_arrival()
            twins.append(parent.branch(request_id_of(arrival), arrival))
        try:
            scheduler.branch(parent, twins, self._parts.runner.copy_blocks)
        except OutOfBlocksError as error:
            raise no_room_for_forks(num_forks, error) from error
        now = self._parts.clock()
        return {t.request_id: reply.fork(t, i, now) for i, t in enumerate(twins)}
