"""Bodies: read whole, within limits of size, time and shape, before anything parses them.

What passes is UTF-8 of a bounded size, depth and number of values; whether it is JSON, and
the right one, is for the route to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefold.server.errors import HttpError
from prefold.server.exchange import ClientGoneError
from prefold.server.json_shape import JsonLimits, find_excess
from prefold.server.off_loop import run_sized

#: Seconds within which a body has to be there.
BODY_DEADLINE_S = 10.0

#: Of the routes that read bodies in the way of files; they look at the type themselves.
FORM_PATHS = frozenset({"/v1/files"})

_SIZE_KEY = "prefold.body_bytes"

#: No route of another method reads a body.
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyReader:
    """Reads the bodies of requests that may have one.

    Args:
        app: What gets the whole body as one message.
        max_body_bytes: A body of so many bytes, or more, is refused.
        limits: Of its shape.
        deadline_s: Seconds that a client has to send it.
        max_bytes_by_path: Of paths with a limit of their own, where it is higher.
    """

    __slots__ = ("_app", "_deadline_s", "_limits", "_max_body_bytes", "_max_bytes_by_path")

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        limits: JsonLimits,
        deadline_s: float = BODY_DEADLINE_S,
        max_bytes_by_path: Mapping[str, int] | None = None,
    ) -> None:
        self._app = app
        self._max_bytes_by_path = max_bytes_by_path or {}
        self._max_body_bytes = max_body_bytes
        self._limits = limits
        self._deadline_s = deadline_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        most = max(self._max_body_bytes, self._max_bytes_by_path.get(path, 0))
        self._check_length(headers, most)
        body = await self._read(receive, most)
        if body and path not in FORM_PATHS:
            _check_media_type(headers)
            await run_sized(len(body), lambda: self._check(body))
        scope[_SIZE_KEY] = len(body)
        is_given = False

        async def replay() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    def _check_length(self, headers: Headers, most: int) -> None:
        length = headers.get("content-length", "0")
        # A longer number is too large whatever its end is.
        if length.isdecimal() and int(length[:19]) >= most:
            raise self._too_large(most)

    async def _read(self, receive: Receive, most: int) -> bytes:
        pieces: list[bytes] = []
        num_bytes = 0
        try:
            async with asyncio.timeout(self._deadline_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    piece = message.get("body", b"")
                    num_bytes += len(piece)
                    if num_bytes >= most:
                        raise self._too_large(most)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError as error:
            raise HttpError(
                408,
                f"the body did not arrive within {self._deadline_s:g} s; send it faster, "
                "or less of it",
                headers={"connection": "close"},
            ) from error

    def _check(self, body: bytes) -> None:
        # Zero bytes are how UTF-16 would look, which JSON readers guess at.
        if not is_utf8(body) or b"\0" in body:
            raise HttpError(400, "the body must be JSON in UTF-8; it is not UTF-8")
        excess = find_excess(body, self._limits)
        if excess is not None:
            raise HttpError(400, excess)

    def _too_large(self, most: int) -> HttpError:
        # The connection stays: the web server throws the rest of the body away, while
        # closing under a client that still sends would keep it from reading this.
        return HttpError(
            413,
            f"the body must be smaller than {most} bytes; send less text in one request",
        )


def body_size(request: HTTPConnection) -> int:
    """Return how many bytes a request's body had: what working on it costs, about."""
    size = request.scope.get(_SIZE_KEY, 0)
    return size if isinstance(size, int) else 0


def _check_media_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").split(";")[0].strip().lower()
    # A web page can make a browser send other types anywhere without asking first.
    if media_type != "application/json":
        raise HttpError(
            415, "set the header content-type to application/json and send JSON"
        )


def is_utf8(body: bytes) -> bool:
    """Tell whether bytes are UTF-8."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
