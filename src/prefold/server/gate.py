"""The gate: nobody comes in without a valid key, whatever the route.

It stands before routing, so a route that is added later is behind it too, and who has no
key cannot find out which routes there are.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from prefold.server.credentials import AuthenticationError, Caller
from prefold.server.exchange import exchange_of


class Gate:
    """Asks every request for a key.

    Args:
        app: What is behind it.
        authenticate: Returns who an ``Authorization`` header belongs to.
        open_paths: Paths that need no key.
    """

    __slots__ = ("_app", "_authenticate", "_open_paths")

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticate: Callable[[str | None], Caller],
        open_paths: frozenset[str],
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            exchange_of(scope).caller = self._authenticate(_authorization(scope))
        await self._app(scope, receive, send)


def _authorization(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if not values:
        return None
    if len(values) > 1:
        raise AuthenticationError("there are several Authorization headers; send one")
    return str(values[0].decode("latin-1"))
