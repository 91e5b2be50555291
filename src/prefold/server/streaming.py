"""Streaming: a reply as server-sent events, piece by piece.

Nothing is sent before the engine's first event, so a request that fails until then still
gets its own status. Afterwards an error is an event of its own, the last one; only a
complete reply ends with ``[DONE]``.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Protocol

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from prefold.engine.request import Usage
from prefold.errors import PrefoldError
from prefold.server.calls import CallEvent, OpenCall
from prefold.server.errors import HttpError, to_body
from prefold.server.off_loop import run_sized

#: Of an answer whose prompts' hits are known before it begins.
CACHED_TOKENS_HEADER = "x-prefold-cached-tokens"

_DONE = b"data: [DONE]\n\n"


class ChunkWriter(Protocol):
    """Makes the events of one route's reply."""

    def begin(self) -> list[BaseModel]:
        """Return what comes before the first token."""
        ...

    def size_of(self, event: CallEvent) -> int:
        """Return what writing an event costs, in characters read."""
        ...

    def write(self, event: CallEvent) -> list[BaseModel]:
        """Return what an event of the engine becomes; often nothing."""
        ...

    def end(self, usage: Usage) -> list[BaseModel]:
        """Return what comes after the last choice has ended."""
        ...


class EventStream(Response):
    """The answer of a call that is being streamed. Closes the call in the end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        call: OpenCall,
        writer: ChunkWriter,
        first: CallEvent,
        events: AsyncIterator[CallEvent],
    ) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if call.is_finished:
            headers[CACHED_TOKENS_HEADER] = str(call.usage().cached_tokens)
        super().__init__(headers=headers)
        # A length would be that of the empty body that this class was given.
        del self.headers["content-length"]
        self._call = call
        self._writer = writer
        self._first = first
        self._events = events

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the whole reply, or what there is of it and an error."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            try:
                await self._send(send, _encode(self._writer.begin()))
                await self._send(send, await self._write(self._first))
                async for event in self._events:
                    await self._send(send, await self._write(event))
                last = _encode(self._writer.end(self._call.usage())) + _DONE
            except (HttpError, PrefoldError) as error:
                last = _frame(json.dumps(to_body(error)))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._call.close()

    async def _write(self, event: CallEvent) -> bytes:
        return await run_sized(
            self._writer.size_of(event), lambda: _encode(self._writer.write(event))
        )

    async def _send(self, send: Send, body: bytes) -> None:
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})


async def open_stream(call: OpenCall, writer: ChunkWriter) -> EventStream:
    """Wait for a call's first event, and return the answer that begins with it.

    Raises:
        ClientGoneError: Nobody waits for it any more.
        HttpError: It failed before it began.
    """
    events = call.events()
    try:
        first = await anext(events)
    except BaseException:
        call.close()
        raise
    return EventStream(call, writer, first, events)


def _encode(chunks: list[BaseModel]) -> bytes:
    # What a writer sets is sent, null or not; what it leaves out is not.
    return b"".join(_frame(chunk.model_dump_json(exclude_unset=True)) for chunk in chunks)


def _frame(text: str) -> bytes:
    return b"data: " + text.encode() + b"\n\n"
