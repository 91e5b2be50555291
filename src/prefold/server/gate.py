"""The gate: nobody comes in without a valid key, whatever the route.

It stands before routing, so a route that is added later is behind it too, and who has no
key cannot find out which routes there are.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from prefold.server.config import is_loopback
from prefold.server.credentials import AuthenticationError, Caller
from prefold.server.errors import HttpError
from prefold.server.exchange import exchange_of


class Gate:
    """Asks every request for a key.

    Args:
        app: What is behind it.
        authenticate: Returns who an ``Authorization`` header belongs to.
        open_paths: Paths that need no key.
        is_local: Whether requests have to name this machine as their host. Without keys
            a web page could else give its own name the address of this machine, and so
            let a browser on it ask.
    """

    __slots__ = ("_app", "_authenticate", "_is_local", "_open_paths")

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticate: Callable[[str | None], Caller],
        open_paths: frozenset[str],
        is_local: bool = False,
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._open_paths = open_paths
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_local:
            _check_host(scope)
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            exchange_of(scope).caller = self._authenticate(_authorization(scope))
            _check_path(scope)
        await self._app(scope, receive, send)


def _check_path(scope: Scope) -> None:
    # A route's pattern also ends before a line break, where comparisons do not.
    if not scope["path"].isprintable():
        raise HttpError(404, "there is no such route; a path has no line breaks")


def _check_host(scope: Scope) -> None:
    for name, value in scope["headers"]:
        if name != b"host":
            continue
        if not is_loopback(_host_in(value.decode("latin-1"))):
            raise HttpError(
                403,
                "without tenants only this machine is served; ask it as 127.0.0.1 or "
                "localhost, or configure tenants and send a key",
            )


def _host_in(address: str) -> str:
    try:
        return urlsplit(f"//{address}").hostname or ""
    except ValueError:  # half of a bracket
        return ""


def _authorization(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if not values:
        return None
    if len(values) > 1:
        raise AuthenticationError("there are several Authorization headers; send one")
    return str(values[0].decode("latin-1"))
