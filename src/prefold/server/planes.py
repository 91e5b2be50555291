"""Planes: two web servers and one engine on one event loop, from start to last answer.

::

    a signal comes      new requests get a 503, open ones go on
    drain_s later       what is still open is aborted
    then                both servers send what they have and close

A second signal skips the wait.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from prefold.engine.async_engine import AsyncEngine
from prefold.errors import EngineStoppedError
from prefold.server.credentials import Authenticator
from prefold.server.keys import CHECK_INTERVAL_S
from prefold.server.listen import BACKLOG, Listeners
from prefold.server.logs import report_loop_error
from prefold.server.silence import Patience, SilenceWatch

#: For the answers that are still being sent after the engine has stopped.
CLOSE_S = 5

#: An idle connection is kept that long; clients and proxies mostly keep theirs shorter.
KEEP_ALIVE_S = 75

_PATIENCE = Patience(first_s=10.0, next_s=KEEP_ALIVE_S + 10.0, unread_s=30.0)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planes:
    """What is served: one engine, two applications, and who may use the public one."""

    engine: AsyncEngine
    public: FastAPI
    admin: FastAPI
    authenticator: Authenticator


async def run_planes(
    planes: Planes,
    listeners: Listeners,
    *,
    drain_s: float,
    on_started: Callable[[], None],
) -> signal.Signals:
    """Serve until a signal comes, end as described above, and return which one it was."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(report_loop_error)
    with _signals(loop) as received:
        await planes.engine.start()
        refreshing = asyncio.create_task(_keep_fresh(planes.authenticator))
        try:
            async with asyncio.TaskGroup() as group:
                servers = []
                for app, listener in (
                    (planes.public, listeners.public),
                    (planes.admin, listeners.admin),
                ):
                    server = await _start(app, listener)
                    servers.append(server)
                    group.create_task(_serve(server, listener))
                on_started()
                first = await received.get()
                _log.info("%s: no more requests are taken", first.name)
                await _stop(planes.engine, received, drain_s)
                for server in servers:
                    server.should_exit = True
        finally:
            refreshing.cancel()
            await planes.engine.stop(drain_s=0.0)
    _log.info("stopped")
    return first


async def _keep_fresh(authenticator: Authenticator) -> None:
    """Read changed keys on a thread: thousands of them would hold every request up."""
    while authenticator.needs_key:
        # Sooner than a request would have to do it itself.
        await asyncio.sleep(CHECK_INTERVAL_S / 2)
        await asyncio.to_thread(authenticator.refresh)


async def _stop(
    engine: AsyncEngine, received: asyncio.Queue[signal.Signals], drain_s: float
) -> None:
    """Drain the engine, or stop waiting at the next signal."""
    draining = asyncio.create_task(engine.stop(drain_s=drain_s))
    impatient = asyncio.create_task(received.get())
    await asyncio.wait((draining, impatient), return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if not draining.done():
        _log.info("a second signal: open requests are aborted")
        draining.cancel()
    # An engine that breaks down meanwhile has nothing left to drain.
    with suppress(EngineStoppedError, asyncio.CancelledError):
        await draining
    await engine.stop(drain_s=0.0)


async def _start(app: FastAPI, listener: socket.socket) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        # The process's own logging stays; requests are logged by the applications.
        log_config=None,
        access_log=False,
        lifespan="off",
        interface="asgi3",
        http="h11",
        ws="none",
        backlog=BACKLOG,
        server_header=False,
        # A header that names another client is anybody's to send.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S,
    )
    config.load()
    server = uvicorn.Server(config)
    # ``Server.serve`` would do the same, and take the signals for itself.
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    return server


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    watch = SilenceWatch(_PATIENCE, time.monotonic)
    watching = asyncio.create_task(watch.run(server.server_state.connections))
    try:
        await server.main_loop()
    finally:
        watching.cancel()
    await server.shutdown(sockets=[listener])


@contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop,
) -> Iterator[asyncio.Queue[signal.Signals]]:
    """Yield a queue of the signals that come while the body runs."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
