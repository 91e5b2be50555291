"""Joint run: stepping until what one caller waits for is there, whatever else is open."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prefold.engine.request import RequestId, RequestOutput
from prefold.engine.stepper import Stepper


class JointRun:
    """Runs requests to their end in one call. Owned by the engine; keeps nothing.

    Args:
        stepper: Whose outbox keeps what belongs to others.
        step: Computes a step and returns the requests that have ended.
        abort: Ends a request.
    """

    __slots__ = ("_abort", "_step", "_stepper")

    def __init__(
        self,
        stepper: Stepper,
        step: Callable[[], list[RequestOutput]],
        abort: Callable[[RequestId], bool],
    ) -> None:
        self._stepper = stepper
        self._step = step
        self._abort = abort

    def run(self, submits: Iterable[Callable[[], RequestId]]) -> list[RequestOutput]:
        """Submit and wait for all; if anything interrupts that, none stays behind."""
        request_ids: list[RequestId] = []
        try:
            for submit in submits:
                request_id = submit()
                request_ids.append(request_id)
            return self._wait_for(request_ids)
        except BaseException:
            self._drop(request_ids)
            raise

    def until(self, is_done: Callable[[], bool]) -> None:
        """Step until something has happened; outputs are kept for later."""
        outputs: list[RequestOutput] = []
        try:
            while not is_done():
                outputs += self._step()
        finally:
            self._stepper.outbox.put_back(outputs)

    def _wait_for(self, request_ids: list[RequestId]) -> list[RequestOutput]:
        """Step until all of them have ended; outputs of others are kept for later."""
        own: dict[RequestId, RequestOutput] = {}
        others: list[RequestOutput] = []
        waiting = set(request_ids)
        try:
            while waiting:
                for output in self._step():
                    is_own = output.request_id in waiting
                    waiting.discard(output.request_id)
                    if is_own:
                        own[output.request_id] = output
                    else:
                        others.append(output)
        finally:
            self._stepper.outbox.put_back(others)
        return [own[request_id] for request_id in request_ids]

    def _drop(self, request_ids: list[RequestId]) -> None:
        """Abort requests without handing out their outputs."""
        if self._stepper.is_broken:
            return
        for request_id in request_ids:
            self._abort(request_id)
        self._stepper.outbox.drop(set(request_ids))
