from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from prefold.engine.request import Usage
from prefold.errors import QueueFullError
from prefold.server.config import LOCAL_TENANT
from prefold.server.credentials import AuthenticationError, Caller
from prefold.server.exchange import ClientGoneError, ExchangeLayer, exchange_of
from prefold.server.gate import Gate
from prefold.server.observer import Plane
from support.asgi_call import Answer, AsgiCall, request
from support.public_plane import Watcher, run

CALLER = Caller(tenant=LOCAL_TENANT, key_id="k7")
SECRET = "a canary that sings"  # noqa: S105 -- stands for a prompt


class Inner:
    """An application that answers, or does not."""

    def __init__(self, error: Exception | None = None, *, begins: bool = False) -> None:
        self._error = error
        self._begins = begins
        self.was_taken = False

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        exchange.caller = CALLER
        exchange.was_taken = self.was_taken
        exchange.usage = Usage(prompt_tokens=9, cached_tokens=8, completion_tokens=2)
        if self._error is None or self._begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if self._error is not None:
            raise self._error
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})


def layer(inner: Inner, watcher: Watcher | None = None) -> ExchangeLayer:
    ticks = iter(range(100))
    return ExchangeLayer(
        inner,
        plane=Plane.PUBLIC,
        observer=watcher or Watcher(),
        token_paths=frozenset({"/tokens"}),
        clock=lambda: next(ticks) / 4,
        new_id=lambda: "made-here",
    )


def ask(app: ExchangeLayer, path: str = "/x", **more: Any) -> Answer:
    answers: list[Answer] = []

    async def test() -> None:
        answers.append(await request(app, "POST", path, {}, **more))

    run(test)
    return answers[0]


@pytest.mark.parametrize("given", ["a", "A-b_c.9", "x" * 64])
def test_a_safe_id_is_kept(given: str) -> None:
    answer = ask(layer(Inner()), headers={"x-request-id": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\nb", "é", "../x", '"'])
def test_any_other_id_is_replaced(given: str) -> None:
    answer = ask(layer(Inner()), headers={"x-request-id": given})
    assert answer.headers["x-request-id"] == "made-here"


def test_an_id_that_is_given_twice_is_replaced() -> None:
    async def test() -> None:
        headers = [(b"x-request-id", b"a"), (b"x-request-id", b"b")]
        call = AsgiCall(layer(Inner()), "GET", "/x", headers)
        answer = await call.feed(b"").start().answer()
        assert answer.headers["x-request-id"] == "made-here"

    run(test)


def test_a_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prefold")
    ask(layer(Inner()), f"/{SECRET}")
    [line] = caplog.messages
    assert line == (
        "request_id=made-here method=POST route=None status=200 ms=250.0 tenant=default "
        "key=k7 prompt=9 cached=8 reply=2"
    )


def test_a_method_that_nobody_knows_does_not_enter_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "prefold")

    async def test() -> None:
        await AsgiCall(layer(Inner()), "CANARY", "/x").feed(b"").start().answer()

    run(test)
    assert "method=other" in caplog.text
    assert "CANARY" not in caplog.text


def test_an_unforeseen_error_is_a_500_that_quotes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "prefold")
    answer = ask(layer(Inner(ValueError(SECRET))))
    assert answer.status == 500
    assert SECRET not in answer.message
    assert SECRET not in caplog.text
    assert "ValueError" in caplog.text
    assert re.search(r"test_exchange.py:\d+", caplog.text)


def test_an_answer_that_has_begun_is_left_unfinished() -> None:
    async def test() -> None:
        app = layer(Inner(QueueFullError("no"), begins=True))
        call = AsgiCall(app, "POST", "/x").feed(b"").start()
        start = await call.next_message()
        assert start is not None
        assert start["type"] == "http.response.start"
        assert await call.next_message() is None

    run(test)


def test_a_client_that_has_gone_gets_nothing_and_is_noted() -> None:
    watcher = Watcher()

    async def test() -> None:
        call = AsgiCall(layer(Inner(ClientGoneError()), watcher), "POST", "/x")
        call.feed(b"").start()
        assert await call.next_message() is None

    run(test)
    assert watcher.responses == [(Plane.PUBLIC, None, 499)]


@pytest.mark.parametrize(("path", "num_refused"), [("/tokens", 1), ("/other", 0)])
def test_a_request_for_tokens_that_was_not_taken_is_refused(
    path: str, num_refused: int
) -> None:
    watcher = Watcher()
    inner = Inner(QueueFullError("no"))
    ask(layer(inner, watcher), path)
    assert watcher.refused == ["default"] * num_refused
    inner.was_taken = True
    ask(layer(inner, watcher), path)
    assert len(watcher.refused) == num_refused


def test_no_other_protocol_gets_past_the_gate() -> None:
    async def unreachable(_scope: Scope, _receive: Receive, _send: Send) -> None:
        pytest.fail("something came through")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(_message: Message) -> None:
        pytest.fail("something was answered")

    async def test() -> None:
        app = ExchangeLayer(unreachable, plane=Plane.PUBLIC, observer=Watcher())
        await app({"type": "websocket", "path": "/v1/models"}, receive, send)

    run(test)


# -- the gate --------------------------------------------------------------------------


def authenticate(authorization: str | None) -> Caller:
    if authorization != "Bearer right":
        raise AuthenticationError("a key is needed")
    return CALLER


def gated() -> ExchangeLayer:
    gate = Gate(Inner(), authenticate=authenticate, open_paths=frozenset({"/health"}))
    return ExchangeLayer(gate, plane=Plane.PUBLIC, observer=Watcher())


@pytest.mark.parametrize("path", ["/x", "/", "/health/", "/health/../x", "/HEALTH", ""])
@pytest.mark.parametrize("key", [None, "wrong", "right "])
def test_no_path_but_the_open_one_is_reached_without_a_key(
    path: str, key: str | None
) -> None:
    assert ask(gated(), path, key=key).status == 401


def test_the_right_key_and_the_open_path_come_in() -> None:
    assert ask(gated(), "/x", key="right").status == 200
    assert ask(gated(), "/health").status == 200


def test_two_keys_are_none() -> None:
    async def test() -> None:
        headers = [(b"authorization", b"Bearer right"), (b"authorization", b"Bearer right")]
        answer = await AsgiCall(gated(), "GET", "/x", headers).feed(b"").start().answer()
        assert answer.status == 401

    run(test)
