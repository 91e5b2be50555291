"""An application behind a real socket, on the loop of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """Serve while the body runs; yield the port."""
    # Named as TCP: only then is small data sent at once, not after the last was received.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        timeout_graceful_shutdown=5,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    loop = asyncio.create_task(server.main_loop())
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await loop
        await server.shutdown(sockets=[listener])


def raw_request(
    path: str, body: bytes, *, length: int | None = None, more: str = ""
) -> bytes:
    """Return the bytes of a POST; ``length`` may promise another body."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body) if length is None else length}\r\n{more}\r\n"
    )
    return head.encode() + body
