"""Logs say what happened and where, and quote nobody."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from prefold.blocks.table import BlockCopy
from prefold.engine.batch import StepPlan
from prefold.errors import InvariantError
from prefold.server import operations
from prefold.server.logs import describe_exception, report_loop_error, set_up_logging
from support.planes_rig import MODEL, RigSettings, assert_error, open_rig


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Set logging up as the server does, and undo it."""
    root = logging.getLogger()
    names = ["prefold", "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"]
    loggers = [root, *map(logging.getLogger, names)]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    written = io.StringIO()
    set_up_logging(written)
    yield written
    for each, handlers, level, propagate in before:
        each.handlers = handlers
        each.setLevel(level)
        each.propagate = propagate


def fail() -> None:
    try:
        raise KeyError("canary inner")
    except KeyError as error:
        raise ValueError("canary outer") from error


def test_own_lines_are_written_as_they_are(stream: io.StringIO) -> None:
    logging.getLogger("prefold.server.x").info("request_id=%s", "abc")
    assert stream.getvalue().endswith("INFO prefold.server.x: request_id=abc\n")


@pytest.mark.parametrize("name", ["prefold.engine", "uvicorn.error", "asyncio", "other"])
def test_an_exception_is_its_type_and_place(name: str, stream: io.StringIO) -> None:
    try:
        fail()
    except ValueError:
        logging.getLogger(name).exception("it failed")
    text = stream.getvalue()
    assert "canary" not in text
    assert "ValueError from KeyError in test_logs.py:" in text
    assert text.count("\n") == 1


def test_messages_of_others_are_not_shown(stream: io.StringIO) -> None:
    logging.getLogger("some.library").error("bad value %r", "canary")
    logging.getLogger("some.library").error(f"bad value {'canary'!r}")  # noqa: G004
    logging.getLogger("some.library").info("canary")
    text = stream.getvalue()
    assert "canary" not in text
    assert text.count("a message from test_logs:") == 2


def test_a_text_that_another_handler_left_is_not_shown(stream: io.StringIO) -> None:
    record = logging.LogRecord("prefold", logging.ERROR, "x.py", 1, "failed", None, None)
    record.exc_text = "canary"
    record.stack_info = "canary"
    logging.getLogger().handle(record)
    assert "canary" not in stream.getvalue()


def test_the_web_server_writes_no_paths(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.access").info('"GET /canary" 200')
    assert stream.getvalue() == ""


def test_what_a_loop_catches_is_not_quoted(stream: io.StringIO) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_loop_error)
        loop.call_exception_handler(
            {"message": "canary", "exception": ValueError("canary")}
        )
        loop.call_exception_handler({"message": "canary"})

    asyncio.run(main())
    text = stream.getvalue()
    assert "canary" not in text
    assert "ValueError" in text
    assert "no exception" in text


def test_a_chain_of_exceptions_ends() -> None:
    error = ValueError("canary")
    error.__cause__ = error
    assert describe_exception(error).count("ValueError") == 8


@pytest.mark.parametrize("error", [RuntimeError("canary"), InvariantError("canary")])
def test_a_crash_in_a_step_quotes_no_prompt(
    error: BaseException, stream: io.StringIO, tmp_path: Path
) -> None:
    async def main() -> str:
        asyncio.get_running_loop().set_exception_handler(report_loop_error)
        settings = RigSettings(directory=tmp_path, wrap_runner=lambda _: Burning(error))
        async with open_rig(settings) as rig, rig.public() as public:
            body = {"model": MODEL, "prompt": "canary prompt"}
            answer = await public.post("/v1/completions", json=body)
            async with rig.admin() as admin:
                metrics = (await admin.get("/metrics")).text
        assert answer.status_code in (500, 503)
        return answer.text + metrics

    text = asyncio.run(main()) + stream.getvalue()
    assert "canary" not in text
    assert "request_id=" in text


def test_a_crash_in_a_route_quotes_nothing(
    stream: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: object) -> None:
        raise ValueError("canary")

    monkeypatch.setattr(operations, "look_up", crash)

    async def main() -> str:
        async with open_rig(RigSettings(directory=tmp_path)) as rig, rig.admin() as admin:
            answer = await admin.post("/cache/lookup", json={"prompt": "canary"})
        assert_error(answer, 500)
        return answer.text

    text = asyncio.run(main()) + stream.getvalue()
    assert "canary" not in text
    assert "ValueError in " in text


class Burning:
    """A runner whose every step fails."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def execute(self, _plan: StepPlan) -> torch.Tensor:
        raise self._error

    def copy_blocks(self, _copies: Sequence[BlockCopy]) -> None:
        raise self._error
