from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from prefold.server.body import BodyReader
from prefold.server.errors import HttpError
from prefold.server.exchange import ClientGoneError
from prefold.server.json_shape import JsonLimits
from support.asgi_call import AsgiCall
from support.public_plane import run

JSON_TYPE = {"content-type": "application/json"}


class Inner:
    """An application that keeps the messages of the bodies it gets."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, _scope: Scope, receive: Receive, _send: Send) -> None:
        self.messages.append(await receive())


def reader(inner: Inner, *, deadline_s: float = 5.0, max_depth: int = 4) -> BodyReader:
    limits = JsonLimits(max_depth=max_depth, max_containers=9, max_fields=9, max_items=9)
    return BodyReader(inner, max_body_bytes=100, limits=limits, deadline_s=deadline_s)


def refusal(headers: dict[str, str], pieces: list[bytes], **options: Any) -> HttpError:
    """Return how a body that comes in pieces is refused; it never gets through."""
    inner = Inner()
    caught: list[HttpError] = []

    async def test() -> None:
        call = AsgiCall(reader(inner, **options), "POST", "/", headers)
        for index, piece in enumerate(pieces):
            call.feed(piece, is_last=index == len(pieces) - 1)
        with pytest.raises(HttpError) as error:
            await call.start().wait()
        caught.append(error.value)

    run(test)
    assert inner.messages == []
    return caught[0]


def test_a_body_of_several_pieces_comes_as_one() -> None:
    inner = Inner()

    async def test() -> None:
        call = AsgiCall(reader(inner), "POST", "/", JSON_TYPE)
        call.feed(b'{"a"', is_last=False).feed(b"", is_last=False).feed(b": 1}")
        await call.start().wait()

    run(test)
    [message] = inner.messages
    assert message == {"type": "http.request", "body": b'{"a": 1}', "more_body": False}


@pytest.mark.parametrize("size", [99, 100, 101])
def test_a_body_is_refused_from_the_limit_on(size: int) -> None:
    data = b'"' + b"a" * (size - 2) + b'"'
    if size < 100:
        inner = Inner()

        async def test() -> None:
            await AsgiCall(reader(inner), "POST", "/", JSON_TYPE).feed(data).start().wait()

        run(test)
        assert inner.messages[0]["body"] == data
        return
    for pieces in ([data], [data[:60], data[60:]], [bytes([c]) for c in data]):
        error = refusal(JSON_TYPE, pieces)
        assert error.status == 413
        assert "smaller than 100 bytes" in error.message
        assert "connection" not in error.headers


@pytest.mark.parametrize("length", ["100", "5000", "9" * 400])
def test_a_length_that_is_too_large_is_refused_before_anything_comes(length: str) -> None:
    error = refusal({**JSON_TYPE, "content-length": length}, [])
    assert error.status == 413


def test_a_slow_sender_is_cut_off() -> None:
    async def test() -> None:
        call = AsgiCall(reader(Inner(), deadline_s=0.05), "POST", "/", JSON_TYPE)
        call.feed(b"{", is_last=False).start()
        with pytest.raises(HttpError) as caught:
            await call.wait()
        assert caught.value.status == 408
        assert "0.05 s" in caught.value.message
        assert caught.value.headers["connection"] == "close"

    run(test)


def test_a_client_that_leaves_while_it_sends_gets_nothing() -> None:
    async def test() -> None:
        call = AsgiCall(reader(Inner()), "POST", "/", JSON_TYPE)
        call.feed(b"{", is_last=False).start()
        await asyncio.sleep(0)
        call.disconnect()
        with pytest.raises(ClientGoneError):
            await call.wait()

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": "\xff"}',
        b'{"a": "\xc3"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-16-le"),
        b'{"a": "\0"}',
    ],
)
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    error = refusal(JSON_TYPE, [data])
    assert (error.status, "UTF-8" in error.message) == (400, True)


@pytest.mark.parametrize(
    "media_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/jso"],
)
def test_only_json_is_read(media_type: str | None) -> None:
    error = refusal({} if media_type is None else {"content-type": media_type}, [b"{}"])
    assert error.status == 415


def test_a_body_of_nothing_has_no_type() -> None:
    inner = Inner()

    async def test() -> None:
        await AsgiCall(reader(inner), "POST", "/").feed(b"").start().wait()

    run(test)
    assert inner.messages[0]["body"] == b""


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8"]
)
def test_json_may_be_named_with_a_charset(media_type: str) -> None:
    inner = Inner()

    async def test() -> None:
        headers = {"content-type": media_type}
        await AsgiCall(reader(inner), "POST", "/", headers).feed(b"{}").start().wait()

    run(test)
    assert len(inner.messages) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD", "TRACE", "DELETE"])
def test_requests_without_a_body_are_not_waited_for(method: str) -> None:
    inner = Inner()

    async def test() -> None:
        await AsgiCall(reader(inner), method, "/").feed(b"").start().wait()

    run(test)
    assert len(inner.messages) == 1


def test_a_body_that_is_too_deep_is_refused() -> None:
    assert refusal(JSON_TYPE, [b"[" * 5 + b"]" * 5]).status == 400
    assert refusal(JSON_TYPE, [b"[" * 90]).status == 400


# -- depth ---------------------------------------------------------------------------
