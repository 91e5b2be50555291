"""Options of ``replay``, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What ``replay`` is to do.

    Attributes:
        policies: Names with commas between; ``None`` for all there are.
        capacities: Blocks, or percent of the trace's distinct blocks, with commas between.
        block_size: Tokens in a block of the file; ``None`` tells it from the lengths.
        merge: Blocks of the file that become one.
        trace_format: A format's name; ``None`` tells it from the first row.
        is_strict: Refuse a file that has anything wrong with it.
        ms_per_token: Of prefill, where nothing stands before.
        ms_per_1k_depth: A token's prefill more for every 1,000 tokens before it.
        ranks_by_cost: Have the policies rank by these figures.
    """

    trace: Path
    policies: str | None
    capacities: str
    block_size: int | None
    merge: int
    trace_format: str | None
    is_strict: bool
    ms_per_token: float
    ms_per_1k_depth: float
    ranks_by_cost: bool
    as_json: bool
