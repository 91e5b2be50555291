"""Trace formats: how each writes a request, and how a file is told from another.

| format | a line is |
|---|---|
| ``compact`` | a request, with the fields below |
| ``sessions`` | a session: ``id``, and ``req``, a list of such requests |
| ``mooncake`` | ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids`` |
| ``openai`` | a request body for an OpenAI-compatible server: see ``request_log`` |

The fields of a compact request are ``t`` seconds, ``n`` prompt tokens, ``o`` output tokens,
``r`` block ids as ``[[first, count], ...]``, and perhaps ``s`` session and ``tenant``. A
first line ``{"block_size": B}`` may say what a block is. In ``sessions``, ids mean nothing
outside of their session, and times count from its own start: all sessions begin at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import TypeAlias

from prefold.advisor.request_log import LogReader, holds_body
from prefold.advisor.trace import shift_runs
from prefold.advisor.trace_row import (
    MAX_BLOCK_ID,
    NoBlockIdsError,
    RecordedRequest,
    Row,
    RowError,
    read_count,
    read_ids,
    read_label,
    read_runs,
    read_time,
)


class TraceFormat(Enum):
    """How a trace is written."""

    COMPACT = "compact"
    SESSIONS = "sessions"
    MOONCAKE = "mooncake"
    OPENAI = "openai"


#: Yields a row's requests, or for each that cannot be read why not.
RowReader: TypeAlias = Callable[[Row], Iterator[RecordedRequest | RowError]]

#: Tokens per block of traces that all have the same.
FIXED_BLOCK_SIZES = {TraceFormat.MOONCAKE: 512}

#: Tokens per block where blocks are made while a trace is read.
MADE_BLOCK_SIZE = 16


def detect_format(row: Row) -> TraceFormat | None:
    """Return the format that a file's first row is in, or None."""
    if "req" in row:
        return TraceFormat.SESSIONS
    if "hash_ids" in row or "input_length" in row:
        return TraceFormat.MOONCAKE
    if holds_body(row):
        return TraceFormat.OPENAI
    if is_header(row) or {"t", "n"} <= row.keys():
        return TraceFormat.COMPACT
    return None


def is_header(row: Row) -> bool:
    """Whether a compact row says what a block is instead of a request."""
    return "block_size" in row and "n" not in row


def make_row_reader(trace_format: TraceFormat, block_size: int | None) -> RowReader:
    """Return a new reader for the rows of one file, to be given them in order."""
    match trace_format:
        case TraceFormat.COMPACT:
            return _read_compact
        case TraceFormat.SESSIONS:
            return _SessionReader()
        case TraceFormat.MOONCAKE:
            return _read_mooncake
        case TraceFormat.OPENAI:
            return LogReader(block_size or MADE_BLOCK_SIZE)


def _read_compact(row: Row) -> Iterator[RecordedRequest]:
    yield _compact_request(row)


def _compact_request(row: Row) -> RecordedRequest:
    return RecordedRequest(
        arrival_s=read_time(row, "t"),
        num_prompt_tokens=read_count(row, "n"),
        num_output_tokens=read_count(row, "o", 0),
        runs=read_runs(row, "r"),
        session=read_label(row, "s"),
        tenant=read_label(row, "tenant"),
    )


def _read_mooncake(row: Row) -> Iterator[RecordedRequest]:
    yield RecordedRequest(
        arrival_s=read_time(row, "timestamp") / 1000,
        num_prompt_tokens=read_count(row, "input_length"),
        num_output_tokens=read_count(row, "output_length", 0),
        runs=read_ids(row, "hash_ids"),
    )


class _SessionReader:
    """Gives each session ids of its own."""

    __slots__ = ("_num_sessions", "_offset")

    def __init__(self) -> None:
        self._offset = 0
        self._num_sessions = 0

    def __call__(self, row: Row) -> Iterator[RecordedRequest | RowError]:
        rows = row.get("req")
        if not isinstance(rows, list):
            raise RowError("'req' is missing or no list")
        name = read_label(row, "id") or f"session {self._num_sessions}"
        self._num_sessions += 1
        offset = self._offset
        for number, each in enumerate(rows, 1):
            try:
                if not isinstance(each, dict):
                    raise RowError("no JSON object")  # noqa: TRY301 -- one place for all
                request = _compact_request(each)
                yield self._moved(request, offset, name)
            except NoBlockIdsError as error:
                yield error
            except RowError as error:
                # The session's other requests can be served all the same.
                yield RowError(f"request {number}: {error}")

    def _moved(self, request: RecordedRequest, offset: int, name: str) -> RecordedRequest:
        runs = request.runs
        if len(runs) == 0:
            return replace(request, session=name)
        end = offset + int(runs.sum(axis=1).max())
        if end > MAX_BLOCK_ID:
            raise RowError("the block ids of all sessions together are too large")
        self._offset = max(self._offset, end)
        return replace(request, runs=shift_runs(runs, offset), session=name)
