"""Entry: a call has its tenant's ticket before anything of its body is read.

So a tenant can have no more bodies read and parsed at the same time than it may have
replies made, and a call counts until the last byte of its answer is out, whether or not
the client goes on reading.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from prefold.server.exchange import exchange_of
from prefold.server.limits import TenantLimits


class EntryLayer:
    """Takes a ticket for each call, and lets go of it when the answer is out.

    Args:
        app: What answers; it is behind the gate.
        limits: Whose tickets.
        paths: Of the calls; others need none.
    """

    __slots__ = ("_app", "_limits", "_paths")

    def __init__(
        self, app: ASGIApp, *, limits: TenantLimits, paths: frozenset[str]
    ) -> None:
        self._app = app
        self._limits = limits
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["type"] == "http" and scope["method"] == "POST"
        if not is_call or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        if exchange.caller is None:
            raise TypeError("a call came in without a caller")
        ticket = exchange.ticket = self._limits.open(exchange.caller.tenant)
        try:
            await self._app(scope, receive, send)
        finally:
            ticket.release()
