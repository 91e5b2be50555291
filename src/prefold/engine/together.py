"""Together: runs requests to their end, for callers that wait for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prefold.engine.request import FinishReason, RequestId, RequestOutput
from prefold.engine.stepper import Stepper


class Together:
    """Submits requests and steps until all have ended. Owned by the engine.

    Args:
        stepper: The engine's.
        step: Takes one step and returns the requests that have ended.
    """

    __slots__ = ("_step", "_stepper")

    def __init__(self, stepper: Stepper, step: Callable[[], list[RequestOutput]]) -> None:
        self._stepper = stepper
        self._step = step

    def run(self, submissions: Iterable[Callable[[], RequestId]]) -> list[RequestOutput]:
        """Return the outputs in order; if anything interrupts that, none stays behind."""
        request_ids: list[RequestId] = []
        try:
            request_ids.extend(submit() for submit in submissions)
            return self._wait_for(request_ids)
        except BaseException:
            self._drop(request_ids)
            raise

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
        stepper = self._stepper
        if stepper.is_broken:
            return
        for request_id in request_ids:
            reply = stepper.replies.get(request_id)
            if reply is not None:
                stepper.end(reply, FinishReason.ABORTED)
        stepper.outbox.drop(set(request_ids))
