"""Trace row: typed values out of one JSON object of a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prefold.advisor.trace import IdRuns, compress_ids, make_runs

#: More tokens than any prompt has, and few enough for any arithmetic on them.
_MAX_TOKENS = 2**31 - 1
#: Ids are int64; what is above is left to those that are made while a trace is read.
MAX_BLOCK_ID = 2**62
_MAX_BLOCKS = 2**24

Row = Mapping[str, object]


class RowError(Exception):
    """A row says nothing that can be used; the text says why, without quoting it."""


class NoBlockIdsError(RowError):
    """A row has arrival and lengths only."""

    def __init__(self) -> None:
        super().__init__("no block ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request as its row tells it: as many ids as there are, partial block included.

    Attributes:
        arrival_s: ``None`` where the row does not say.
    """

    arrival_s: float | None
    num_prompt_tokens: int
    num_output_tokens: int
    runs: IdRuns
    session: str | None = None
    tenant: str | None = None


def read_time(row: Row, name: str) -> float:
    """Return the field as a finite number of at least 0."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(f"{name!r} is missing or no number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0:
        raise RowError(f"{name!r} is no time")
    return seconds


def read_count(row: Row, name: str, default: int | None = None) -> int:
    """Return the field as a whole number of at least 0."""
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RowError(f"{name!r} is missing or no whole number")
    if not 0 <= value <= _MAX_TOKENS:
        raise RowError(f"{name!r} is not from 0 to {_MAX_TOKENS}")
    return value


def read_label(row: Row, name: str) -> str | None:
    """Return the field, a string or a whole number, as text; None if it is not there."""
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RowError(f"{name!r} is neither a string nor a whole number")
    return str(value)


def read_runs(row: Row, name: str) -> IdRuns:
    """Return the field, a list of [first, count]."""
    if name not in row:
        raise NoBlockIdsError
    value = row[name]
    if not isinstance(value, list):
        raise RowError(f"{name!r} is no list of [first block id, count]")
    num_blocks = 0
    # One plain loop: traces have millions of these.
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowError(f"{name!r} is no list of [first block id, count]")
        first, count = pair
        if (
            type(first) is not int
            or type(count) is not int
            or not 0 <= first <= MAX_BLOCK_ID
            or not 1 <= count <= _MAX_BLOCKS
        ):
            raise RowError(f"{name!r} is no list of [first block id, count]")
        num_blocks += count
    if num_blocks > _MAX_BLOCKS:
        raise RowError(f"{name!r} has more than {_MAX_BLOCKS} blocks")
    return make_runs(value)


def read_ids(row: Row, name: str) -> IdRuns:
    """Return the field, a list of ids, as runs."""
    if name not in row:
        raise NoBlockIdsError
    value = row[name]
    if not isinstance(value, list) or not _are_whole(value):
        raise RowError(f"{name!r} is no list of block ids")
    if value and (min(value) < 0 or max(value) > MAX_BLOCK_ID):
        raise RowError(f"{name!r} has an id that is not from 0 to {MAX_BLOCK_ID}")
    return compress_ids(np.array(value, dtype=np.int64))


def _are_whole(values: list[object]) -> bool:
    # True and False are ints to Python; the set is of types, so it is small.
    return set(map(type, values)) <= {int}
