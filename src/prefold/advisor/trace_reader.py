"""Trace reader: a trace file of any known format, as one value.

What cannot be read is passed over and reported, or refused in strict mode; a file of
which nothing can be replayed is refused with a sentence that says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prefold.advisor.block_size import check_block_size, detect_block_size
from prefold.advisor.trace import Trace, TraceRequest, cut_runs
from prefold.advisor.trace_formats import (
    FIXED_BLOCK_SIZES,
    MADE_BLOCK_SIZE,
    TraceFormat,
    detect_format,
    is_header,
    make_row_reader,
)
from prefold.advisor.trace_lines import TraceProblem, TraceProblems, read_rows
from prefold.advisor.trace_merging import merge_blocks
from prefold.advisor.trace_row import NoBlockIdsError, RecordedRequest, Row, RowError
from prefold.errors import InvalidInputError

_NAMES = ", ".join(each.value for each in TraceFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a trace is to be read.

    Attributes:
        trace_format: ``None`` tells it from the first row.
        block_size: Tokens per block; ``None`` takes what the file says, or tells it from
            the lengths.
        num_merged: Blocks of the file that become one block of the trace.
        is_strict: Refuse a file that has anything wrong with it.
    """

    trace_format: TraceFormat | None = None
    block_size: int | None = None
    num_merged: int = 1
    is_strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReading:
    """A trace, and what was passed over to get it.

    Attributes:
        problems: The first of them.
        num_problems: All of them.
    """

    trace: Trace
    trace_format: TraceFormat
    problems: tuple[TraceProblem, ...]
    num_problems: int


def read_trace(path: Path, options: TraceOptions | None = None) -> TraceReading:
    """Read a trace: JSON lines, plain or gzip, in a format of ``trace_formats``.

    Only full blocks of prompts are kept. Requests come in the order of their arrival,
    those of one instant in the order of the file. Memory: the requests, and one line.

    Raises:
        InvalidInputError: The file cannot be read; its format or block size cannot be
            told or does not fit; it has no requests, or none with block ids; or, in
            strict mode, anything else is wrong with it.
    """
    options = options or TraceOptions()
    if options.block_size is not None and options.block_size < 1:
        raise InvalidInputError(
            f"a block must have at least 1 token, got {options.block_size}"
        )
    problems = TraceProblems(path, is_strict=options.is_strict)
    file = _File(path, problems, options)
    recorded = list(file.requests())
    if not recorded:
        raise InvalidInputError(file.why_empty())
    num_ids = _count_ids(recorded)
    block_size = file.block_size(recorded, num_ids)
    trace = Trace(
        name=path.name.removesuffix(".gz").removesuffix(".jsonl"),
        block_size=block_size,
        requests=_in_order(recorded, num_ids, block_size),
    )
    return TraceReading(
        trace=merge_blocks(trace, options.num_merged),
        trace_format=file.trace_format,
        problems=tuple(problems.listed),
        num_problems=problems.num_found,
    )


class _File:
    """One pass through a file."""

    def __init__(self, path: Path, problems: TraceProblems, options: TraceOptions) -> None:
        self._path = path
        self._problems = problems
        self._options = options
        self._said_size: int | None = None
        self._num_without_ids = 0
        self._has_rows = False
        self.trace_format = options.trace_format or TraceFormat.COMPACT

    def requests(self) -> Iterator[RecordedRequest]:
        rows = read_rows(self._path, self._problems)
        first = next(rows, None)
        if first is None:
            return
        self._has_rows = True
        self._detect(first[1])
        reader = make_row_reader(self.trace_format, self._options.block_size)
        number, row = first
        if self.trace_format is TraceFormat.COMPACT and is_header(row):
            self._read_header(number, row)
            first = None
        order = _Order(self._problems, self.trace_format)
        for number, row in itertools.chain([] if first is None else [first], rows):
            try:
                for request in reader(row):
                    if isinstance(request, RowError):
                        self._note(number, request)
                    else:
                        order.check(number, request)
                        yield request
            except RowError as error:
                self._note(number, error)

    def _detect(self, row: Row) -> None:
        if self._options.trace_format is not None:
            return
        found = detect_format(row)
        if found is None:
            raise InvalidInputError(
                f"{self._path}: the first row is of no known trace format; give the format "
                f"if it is one of {_NAMES}"
            )
        self.trace_format = found

    def _read_header(self, number: int, row: Row) -> None:
        size = row["block_size"]
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            self._said_size = size
        else:
            self._problems.note(number, "'block_size' is no whole number above 0")

    def _note(self, number: int, error: RowError) -> None:
        if isinstance(error, NoBlockIdsError):
            self._num_without_ids += 1
        self._problems.note(number, str(error))

    def why_empty(self) -> str:
        """Say why there is no request."""
        if self._num_without_ids:
            return (
                f"{self._path} has arrival times and lengths but no block ids; which "
                "prompts begin alike cannot be known, so there is nothing to replay"
            )
        if self._problems.listed and not self._has_rows:
            return (
                f"{self._path} has no line that can be read; give a file with one JSON "
                "object on each line, plain or gzip; the first problem is: "
                f"{self._problems.listed[0].describe()}"
            )
        if self._problems.listed:
            return (
                f"{self._path} has no request that can be read as "
                f"{self.trace_format.value}; the first problem is: "
                f"{self._problems.listed[0].describe()}"
            )
        return f"{self._path} is empty: it has no requests"

    def block_size(self, recorded: list[RecordedRequest], num_ids: list[int]) -> int:
        """Return the tokens per block: as said, as usual, or as the lengths tell."""
        if self.trace_format is TraceFormat.OPENAI:
            return self._options.block_size or MADE_BLOCK_SIZE
        num_tokens = [request.num_prompt_tokens for request in recorded]
        size = (
            self._options.block_size
            or self._said_size
            or FIXED_BLOCK_SIZES.get(self.trace_format)
            or detect_block_size(num_tokens, num_ids)
        )
        if size is None:
            raise InvalidInputError(
                f"{self._path}: how many tokens a block has cannot be told from the "
                "prompts' lengths; give the block size"
            )
        try:
            check_block_size(num_tokens, num_ids, size)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._path}: {error}") from error
        return size


class _Order:
    """Reports requests that stand after later ones."""

    __slots__ = ("_latest", "_problems", "_session", "_trace_format")

    def __init__(self, problems: TraceProblems, trace_format: TraceFormat) -> None:
        self._problems = problems
        self._trace_format = trace_format
        self._session: str | None = None
        self._latest = 0.0

    def check(self, number: int, request: RecordedRequest) -> None:
        if request.arrival_s is None:
            return
        # Every session begins its own clock.
        if self._trace_format is TraceFormat.SESSIONS and request.session != self._session:
            self._session, self._latest = request.session, 0.0
        if request.arrival_s < self._latest:
            self._problems.note(number, "arrives before the request in front of it")
        self._latest = max(self._latest, request.arrival_s)


def _count_ids(recorded: list[RecordedRequest]) -> list[int]:
    """Return how many ids each request has; all at once, which is much faster."""
    ends = np.cumsum([len(request.runs) for request in recorded])
    counts = np.concatenate([request.runs for request in recorded])[:, 1]
    sums = np.concatenate([[0], np.cumsum(counts)])
    totals: list[int] = np.diff(sums[np.concatenate([[0], ends])]).tolist()
    return totals


def _in_order(
    recorded: list[RecordedRequest], num_ids: list[int], block_size: int
) -> list[TraceRequest]:
    times = [request.arrival_s for request in recorded]
    known = [at for at in times if at is not None]
    if len(known) < len(times):
        # Of an order in time only the file's own is left, at an even pace.
        at_by_place = [float(place) for place in range(len(times))]
    else:
        at_by_place = known
    requests = [
        TraceRequest(
            arrival_s=at,
            num_prompt_tokens=each.num_prompt_tokens,
            num_output_tokens=each.num_output_tokens,
            runs=each.runs
            if its_ids <= each.num_prompt_tokens // block_size
            else cut_runs(each.runs, each.num_prompt_tokens // block_size),
            session=each.session,
            tenant=each.tenant,
        )
        for at, each, its_ids in zip(at_by_place, recorded, num_ids, strict=True)
    ]
    return sorted(requests, key=lambda request: request.arrival_s)
