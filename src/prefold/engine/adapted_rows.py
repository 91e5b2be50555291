"""Adapted rows: which rows of a step pass which adapter.

::

    rows of a step   |- base -|-- A --|- B -|- base -|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefold.engine.adapter import Adapter
from prefold.engine.batch import SequenceSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedRows:
    """Rows ``start`` to ``end`` - 1 of a step, which pass an adapter."""

    adapter: Adapter
    start: int
    end: int


def find_adapted_rows(slices: Sequence[SequenceSlice]) -> tuple[AdaptedRows, ...]:
    """Return which rows of a step pass which adapter. Neighbours of one are together."""
    found: list[AdaptedRows] = []
    row = 0
    for piece in slices:
        end = row + piece.num_tokens
        adapter = piece.adapter
        start = row + max(0, piece.adapted_from - piece.start)
        row = end
        if adapter is None or start >= end:
            continue
        last = found[-1] if found else None
        if last is not None and last.adapter is adapter and last.end == start:
            found.pop()
            start = last.start
        found.append(AdaptedRows(adapter=adapter, start=start, end=end))
    return tuple(found)
