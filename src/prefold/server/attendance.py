"""Attendance: work for a client goes on as long as the client waits and there is time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from prefold.server.errors import HttpError
from prefold.server.exchange import ClientGoneError

_T = TypeVar("_T")


async def while_wanted(
    work: Coroutine[Any, Any, _T], receive: Receive, *, timeout_s: float | None
) -> _T:
    """Return what ``work`` returns; cancel it, and wait for its end, if it is not wanted.

    Args:
        work: What to do.
        receive: Of the client's connection, with the body read.
        timeout_s: Seconds that it may take; None for any time.

    Raises:
        ClientGoneError: The client has gone.
        HttpError: There was no more time.
        Exception: Whatever ``work`` raises.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait(
            (working, watching), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if working.done():
            return working.result()
        if watching.done():
            # Raises what went wrong with the connection, if it did not just end.
            watching.result()
            raise ClientGoneError
        raise HttpError(
            503,
            "the request took longer than this server allows; ask for less at a time, or "
            "try again",
            code="timeout",
            retry_after_s=1.0,
        )
    finally:
        working.cancel()
        watching.cancel()
        # Also takes note of what either raises that nobody will hear of.
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
