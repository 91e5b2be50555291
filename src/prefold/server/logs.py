"""Logs: what the server writes on standard error, and what it never does.

An exception's message may quote what a client sent. So of an exception a line shows its
type and where it came from, whoever raised it. Other messages are shown where they are
known not to quote anything: this project's, which put no prompt, token, salt or key into
one, and the web server's. Of any other a line shows where it was written.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Any, TextIO

_OWN = "prefold"

#: Names of loggers, and beginnings of them, whose messages are shown.
_TRUSTED = (_OWN, "uvicorn.error", "uvicorn.asgi")

#: From here on, loggers of others are heard at all.
_FOREIGN_LEVEL = logging.WARNING

_ExcInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None]
    | tuple[None, None, None]
)

_log = logging.getLogger(__name__)


class DiscreetFormatter(logging.Formatter):
    """Formats records without the text of exceptions and of unknown messages."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        shown = logging.makeLogRecord(record.__dict__)
        # Other handlers may have left the full text here.
        shown.exc_text = None
        shown.stack_info = None
        if not record.name.startswith(_TRUSTED):
            shown.msg, shown.args = f"a message from {record.module}:{record.lineno}", None
        return super().format(shown).replace("\n", " | ")

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 -- logging's name
        """Return an exception's type and where it came from."""
        return "" if ei[1] is None else describe_exception(ei[1])


def describe_exception(error: BaseException) -> str:
    """Return an exception's type and the places it passed, without its message."""
    frames = extract_tb(error.__traceback__)
    places = [f"{Path(at.filename).name}:{at.lineno}" for at in frames]
    kinds = [type(error).__name__]
    cause = error.__cause__ or error.__context__
    while cause is not None and len(kinds) < 8:
        kinds.append(type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return f"{' from '.join(kinds)} in {', '.join(places) or 'an unknown place'}"


def set_up_logging(stream: TextIO = sys.stderr) -> None:
    """Send every log line of this process to ``stream``, in the discreet form."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(DiscreetFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_FOREIGN_LEVEL)
    logging.getLogger(_OWN).setLevel(logging.INFO)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(_FOREIGN_LEVEL)


def report_loop_error(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what an event loop caught; its own report would quote the exception."""
    error = context.get("exception")
    what = "no exception" if error is None else describe_exception(error)
    _log.error("the event loop caught something: %s", what)
