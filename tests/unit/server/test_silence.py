"""Connections without a request are closed after a while, and others never."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from prefold.server.exchange import ExchangeLayer
from prefold.server.observer import Plane
from prefold.server.silence import Patience, SilenceWatch
from support.public_plane import Watcher
from support.settable_clock import SettableClock

PATIENCE = Patience(first_s=10.0, next_s=85.0, unread_s=30.0)
PIECE = bytes(1 << 16)
ENDLESS = b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n"
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Listener:
    """The web server, without its own limits, and a watch whose clock the test sets."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self.watch = SilenceWatch(PATIENCE, self.clock)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.num_ended = 0
        self._server: uvicorn.Server | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))

    async def start(self) -> None:
        config = uvicorn.Config(
            ExchangeLayer(self._answer, plane=Plane.PUBLIC, observer=Watcher()),
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=10_000,
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    async def stop(self) -> None:
        assert self._server is not None
        self.may_answer.set()
        await self._server.shutdown(sockets=[self._socket])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pair = await asyncio.open_connection(*self._socket.getsockname()[:2])
        await self.settle()
        return pair

    async def sweep(self, after_s: float) -> int:
        await self.settle()
        assert self._server is not None
        self.clock.advance(after_s)
        return self.watch.sweep(self._server.server_state.connections)

    def is_stuck(self) -> bool:
        """Whether what is to be sent does not get through."""
        assert self._server is not None
        [connection] = self._server.server_state.connections
        assert isinstance(connection, H11Protocol)
        return connection.flow.write_paused

    async def settle(self) -> None:
        """Let what was sent arrive."""
        for _ in range(10):
            await asyncio.sleep(0.005)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may_answer.wait()
        if scope["path"] == "/endless":
            await self._answer_for_ever(receive, send)
            return
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def _answer_for_ever(self, receive: Receive, send: Send) -> None:
        await receive()
        leaving = asyncio.create_task(self._wait_for_the_end(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not leaving.done():
            piece = {"type": "http.response.body", "body": PIECE, "more_body": True}
            await send(piece)
            await asyncio.sleep(0)
        self.num_ended += 1

    async def _wait_for_the_end(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def open_listener() -> AsyncIterator[Listener]:
    listener = Listener()
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop()


def run(check: Callable[[Listener], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_listener() as listener:
            await check(listener)

    asyncio.run(main())


@pytest.mark.parametrize("begun", [b"", b"POST /v1/comp", b"GET / HTTP/1.1\r\nx: "])
def test_who_never_sends_a_request_is_cut(begun: bytes) -> None:
    async def check(listener: Listener) -> None:
        reader, writer = await listener.connect()
        writer.write(begun)
        assert await listener.sweep(0) == 0
        assert await listener.sweep(9.9) == 0
        assert await listener.sweep(0.2) == 1
        assert await reader.read() == b""
        await hang_up(writer)

    run(check)


def test_a_request_under_way_is_left_alone() -> None:
    async def check(listener: Listener) -> None:
        listener.may_answer.clear()
        reader, writer = await listener.connect()
        writer.write(REQUEST)
        for _ in range(5):
            assert await listener.sweep(1000) == 0
        listener.may_answer.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await hang_up(writer)

    run(check)


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP"])
def test_between_requests_there_is_more_time(begun: bytes) -> None:
    async def check(listener: Listener) -> None:
        reader, writer = await listener.connect()
        writer.write(REQUEST)
        await reader.readuntil(b"ok")
        writer.write(begun)
        assert await listener.sweep(0) == 0
        assert await listener.sweep(84) == 0
        assert await listener.sweep(2) == 1
        assert await reader.read() == b""
        await hang_up(writer)

    run(check)


def test_quick_requests_do_not_add_up_to_silence() -> None:
    async def check(listener: Listener) -> None:
        reader, writer = await listener.connect()
        for _ in range(5):
            writer.write(REQUEST)
            await reader.readuntil(b"ok")
            assert await listener.sweep(60) == 0
        await hang_up(writer)

    run(check)


def test_who_stops_reading_a_long_answer_is_cut() -> None:
    async def check(listener: Listener) -> None:
        _reader, writer = await listener.connect()
        writer.write(ENDLESS)
        # The client's own buffers fill first.
        for _ in range(200):
            await asyncio.sleep(0.01)
            if listener.is_stuck():
                break
        assert await listener.sweep(0) == 0
        assert await listener.sweep(29) == 0
        assert listener.num_ended == 0
        assert await listener.sweep(2) == 1
        await listener.settle()
        # The application hears that the client has gone.
        assert listener.num_ended == 1
        writer.transport.abort()

    run(check)


def test_who_reads_slowly_is_left_alone() -> None:
    async def check(listener: Listener) -> None:
        reader, writer = await listener.connect()
        writer.write(ENDLESS)
        for _ in range(6):
            # Enough to make room on both sides.
            await reader.readexactly(1 << 23)
            assert await listener.sweep(20) == 0
        assert listener.num_ended == 0
        writer.transport.abort()
        await listener.settle()

    run(check)
