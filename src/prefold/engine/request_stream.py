"""Request stream: what happens to one request of an asynchronous engine, as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from prefold.engine.outbox import NewToken
from prefold.engine.request import RequestId, RequestOutput
from prefold.errors import EngineStoppedError


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """Something that happened to one choice of a request.

    Attributes:
        index: The choice, from 0.
        token: A new token; None if the event brings the output only.
        output: What became of the choice; exactly its last event has it.
    """

    index: int
    token: NewToken | None = field(repr=False)
    output: RequestOutput | None


class RequestStream:
    """One request with n choices, read by one task.

    Leaving ``events`` early aborts what is left, so a reader that goes away needs to do
    nothing else.
    """

    __slots__ = ("_abort", "_events", "_num_open", "_outputs", "request_ids")

    def __init__(
        self, request_ids: list[RequestId], abort: Callable[[list[RequestId]], None]
    ) -> None:
        self.request_ids = tuple(request_ids)
        self._abort = abort
        self._events: asyncio.Queue[StreamEvent | EngineStoppedError] = asyncio.Queue()
        self._num_open = len(request_ids)
        self._outputs: dict[int, RequestOutput] = {}

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield what happens until all choices have ended.

        Raises:
            EngineStoppedError: The engine broke down; nothing more will come.
        """
        try:
            while self._num_open:
                event = await self._events.get()
                if isinstance(event, EngineStoppedError):
                    self._num_open = 0
                    raise event
                if event.output is not None:
                    self._num_open -= 1
                    self._outputs[event.index] = event.output
                yield event
        finally:
            self.abort()

    async def outputs(self) -> list[RequestOutput]:
        """Wait for all choices; return their outputs in order.

        Raises:
            EngineStoppedError: As ``events``.
        """
        async for _ in self.events():
            pass
        return [output for _, output in sorted(self._outputs.items())]

    def abort(self) -> None:
        """End what has not ended, within a step. May be called at any time."""
        if self._num_open:
            self._abort(list(self.request_ids))

    def put(self, event: StreamEvent | EngineStoppedError) -> None:
        """Hand over an event; on the event loop."""
        self._events.put_nowait(event)
