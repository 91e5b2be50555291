"""One HTTP request to an ASGI application, with the client's side in the test's hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from starlette.types import ASGIApp, Message, Scope

#: Longer than anything here takes; a call that hangs fails.
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The sentence of an error, whose shape is checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert set(self.json) == {"error"}
        return str(error["message"])

    @property
    def events(self) -> list[Any]:
        """What a stream sent; the last one is the text ``[DONE]`` if it is complete."""
        assert self.headers["content-type"].startswith("text/event-stream")
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        texts = [frame.removeprefix("data: ") for frame in frames]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]


class AsgiCall:
    """A request under way. The test feeds the body and may close the connection."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        headers: Mapping[str, str] | list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self._app = app
        pairs = (
            headers
            if isinstance(headers, list)
            else [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        )
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1:8000"), *pairs],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self._is_gone = False
        #: While it is cleared, the client reads nothing and there is no room for more.
        self.is_read = asyncio.Event()
        self.is_read.set()
        self._task: asyncio.Task[None] | None = None
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._body = b""

    def replace_host(self) -> None:
        """Send no host but the one that was given."""
        del self._scope["headers"][0]

    def start(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    def feed(self, body: bytes, *, is_last: bool = True) -> Self:
        self._incoming.put_nowait(
            {"type": "http.request", "body": body, "more_body": not is_last}
        )
        return self

    def disconnect(self) -> None:
        self._is_gone = True
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def cancel(self) -> None:
        """Cancel the application's work, as a server does that has no time left."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()

    async def next_message(self) -> Message | None:
        """Return what is sent next; None at the end."""
        return await asyncio.wait_for(self._sent.get(), _PATIENCE_S)

    async def wait(self) -> None:
        """Wait until the application is done with the request."""
        assert self._task is not None
        await asyncio.wait_for(self._task, _PATIENCE_S)

    async def answer(self) -> Answer:
        """Wait for the whole answer."""
        await self.wait()
        is_complete = False
        while (message := self._sent.get_nowait()) is not None:
            if message["type"] == "http.response.start":
                assert self._status is None
                self._status = message["status"]
                for name, value in message["headers"]:
                    self._headers[name.decode()] = value.decode("latin-1")
            else:
                self._body += message.get("body", b"")
                is_complete = not message.get("more_body", False)
        assert self._status is not None
        assert is_complete
        return Answer(self._status, self._headers, self._body)

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self._incoming.get, self._send)
        finally:
            self._sent.put_nowait(None)

    async def _send(self, message: Message) -> None:
        # A server takes what is sent to a client that has gone, and drops it.
        if not self._is_gone:
            self._sent.put_nowait(message)
            await self.is_read.wait()
        await asyncio.sleep(0)


async def request(
    app: ASGIApp,
    method: str,
    path: str,
    body: object = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request whole; a body that is not bytes is sent as JSON."""
    sent = dict(headers or {})
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    if body is None:
        data = b""
    else:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent.setdefault("content-type", "application/json")
        sent.setdefault("content-length", str(len(data)))
    call = AsgiCall(app, method, path, sent).feed(data).start()
    return await call.answer()
