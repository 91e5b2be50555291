"""Exchange: one HTTP request and its answer, and what is kept of them.

The outermost layer of a plane. It names the request, turns what goes wrong inside into
an answer, writes one line about it and tells the observer::

    request_id=6f... method=POST route=/v1/completions status=200 ms=81.3 tenant=acme
    key=k7 prompt=1056 cached=1024 reply=16

No line has text, token ids, a path as the client wrote it, or a key.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping

from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefold.engine.request import Usage
from prefold.errors import PrefoldError
from prefold.server.credentials import Caller
from prefold.server.errors import HttpError, internal_error, to_response
from prefold.server.limits import Ticket
from prefold.server.logs import describe_exception
from prefold.server.observer import ExchangeId, HttpObserver, Plane

_log = logging.getLogger(__name__)

_SCOPE_KEY = "prefold.exchange"

#: An incoming id is repeated in headers and logs, so it may hold nothing else.
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: What is noted where the client left before there was a status.
CLIENT_GONE_STATUS = 499


class ClientGoneError(Exception):
    """The client closed the connection; nobody waits for an answer."""


class Exchange:
    """What is known of one request. Owned by its layer; lives on the event loop.

    Attributes:
        id_text: The client's ``x-request-id`` if it was a safe one, or a random one.
        serial: Its number among those of its plane.
        caller: Who asks, once that is known.
        status: Of the answer, once it has begun.
        was_taken: Whether the engine took it in.
        usage: Its tokens, once they are counted.
        ticket: Its tenant's, for a call.
        num_sent: Pieces of the answer that there was room for.
    """

    __slots__ = (
        "caller",
        "id_text",
        "num_sent",
        "serial",
        "status",
        "ticket",
        "usage",
        "was_taken",
    )

    def __init__(self, id_text: str, serial: int) -> None:
        self.id_text = id_text
        self.serial = serial
        self.caller: Caller | None = None
        self.status: int | None = None
        self.was_taken = False
        self.usage: Usage | None = None
        self.ticket: Ticket | None = None
        self.num_sent = 0

    @property
    def request_id(self) -> ExchangeId:
        """What tells it from all others."""
        tenant = None if self.caller is None else self.caller.tenant.name
        return ExchangeId(text=self.id_text, serial=self.serial, tenant=tenant)


def exchange_of(connection: HTTPConnection | Scope) -> Exchange:
    """Return the exchange that a request belongs to."""
    scope = connection.scope if isinstance(connection, HTTPConnection) else connection
    exchange = scope[_SCOPE_KEY]
    if not isinstance(exchange, Exchange):
        raise TypeError("the request came without its exchange")
    return exchange


def num_sent_in(scope: Mapping[str, object]) -> int:
    """Return how many pieces of an answer there was room for."""
    exchange = scope.get(_SCOPE_KEY)
    return exchange.num_sent if isinstance(exchange, Exchange) else 0


class ExchangeLayer:
    """The outermost layer of one plane.

    Args:
        app: What answers.
        plane: Which of the two.
        observer: Told about every answer.
        token_paths: Paths whose requests ask for tokens: the observer hears of those
            that the engine never took in.
        clock: Seconds from any origin.
        new_id: Makes random ids.
    """

    __slots__ = (
        "_app",
        "_clock",
        "_new_id",
        "_observer",
        "_plane",
        "_serials",
        "_token_paths",
    )

    def __init__(
        self,
        app: ASGIApp,
        *,
        plane: Plane,
        observer: HttpObserver,
        token_paths: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._app = app
        self._plane = plane
        self._observer = observer
        self._token_paths = token_paths
        self._clock = clock
        self._new_id = new_id
        self._serials = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return  # no other protocol is spoken, so none gets past the gate
        exchange = Exchange(self._id_of(scope), next(self._serials))
        scope[_SCOPE_KEY] = exchange
        started_at = self._clock()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                name = (b"x-request-id", exchange.id_text.encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), name]}
            await send(message)
            exchange.num_sent += 1

        try:
            await self._answer(scope, receive, send_named, exchange)
        finally:
            self._note(scope, exchange, self._clock() - started_at)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, exchange: Exchange
    ) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            return
        except (HttpError, PrefoldError) as error:
            await self._refuse(error, scope, receive, send, exchange)
        except Exception as error:  # noqa: BLE001 -- the last line: one request fails
            # Its message stays out of log and answer: it could hold a prompt.
            what = describe_exception(error)
            _log.error("request_id=%s failed: %s", exchange.id_text, what)
            await self._refuse(internal_error(), scope, receive, send, exchange)

    async def _refuse(
        self,
        error: HttpError | PrefoldError,
        scope: Scope,
        receive: Receive,
        send: Send,
        exchange: Exchange,
    ) -> None:
        # An answer that has begun cannot become another one; leaving it unfinished makes
        # the server close the connection, which the client sees.
        if exchange.status is None:
            await to_response(error)(scope, receive, send)

    def _id_of(self, scope: Scope) -> str:
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        text = given[0].decode("latin-1") if len(given) == 1 else ""
        return text if _SAFE_ID.fullmatch(text) else self._new_id()

    def _note(self, scope: Scope, exchange: Exchange, seconds: float) -> None:
        status = CLIENT_GONE_STATUS if exchange.status is None else exchange.status
        found = scope.get("route")
        route = found.path if isinstance(found, APIRoute) else None
        caller, usage = exchange.caller, exchange.usage
        tokens = (
            ""
            if usage is None
            else f" prompt={usage.prompt_tokens} cached={usage.cached_tokens} "
            f"reply={usage.completion_tokens}"
        )
        _log.info(
            "request_id=%s method=%s route=%s status=%d ms=%.1f tenant=%s key=%s%s",
            exchange.id_text,
            scope["method"] if scope["method"] in _METHODS else "other",
            route,
            status,
            1000 * seconds,
            None if caller is None else caller.tenant.name,
            None if caller is None else caller.key_id,
            tokens,
        )
        self._observer.on_response(self._plane, route, status)
        wants_tokens = scope["path"] in self._token_paths and scope["method"] == "POST"
        if wants_tokens and caller is not None and not exchange.was_taken:
            self._observer.on_refused(caller.tenant.name)
