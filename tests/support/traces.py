"""Traces for tests: written short, and compared."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from prefold.advisor import Trace, TraceRequest
from prefold.advisor.trace import compress_ids
from prefold.blocks.table import TOKEN_DTYPE


def make_trace(
    prompts: Iterable[Sequence[int]], block_size: int = 16, seconds_apart: float = 1.0
) -> Trace:
    """Return a trace of these block ids."""
    requests = [
        TraceRequest(
            arrival_s=number * seconds_apart,
            num_prompt_tokens=len(prompt) * block_size,
            num_output_tokens=1,
            runs=compress_ids(np.array(prompt, dtype=TOKEN_DTYPE)),
        )
        for number, prompt in enumerate(prompts)
    ]
    return Trace(name="made", block_size=block_size, requests=requests)


def prompts_of(trace: Trace) -> list[list[int]]:
    return [request.block_ids().tolist() for request in trace.requests]


def facts_of(trace: Trace) -> list[tuple[object, ...]]:
    """Return everything a trace says, to be compared."""
    return [
        (
            request.arrival_s,
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.session,
            request.tenant,
            request.block_ids().tolist(),
        )
        for request in trace.requests
    ]


def shape_of(prompts: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the prompts with ids that are new for every block after another prefix.

    Equal shapes mean that the same prompts share the same beginnings.
    """
    numbers: dict[tuple[int, ...], int] = {}
    return [
        [
            numbers.setdefault(tuple(prompt[: end + 1]), len(numbers))
            for end in range(len(prompt))
        ]
        for prompt in prompts
    ]


def write_lines(path: Path, rows: Iterable[object], *, zipped: bool | None = None) -> Path:
    """Write rows as JSON lines; a row that is text or bytes as it is."""
    data = b"".join(_line(row) + b"\n" for row in rows)
    if zipped if zipped is not None else path.suffix == ".gz":
        data = gzip.compress(data)
    path.write_bytes(data)
    return path


def _line(row: object) -> bytes:
    if isinstance(row, bytes):
        return row
    return row.encode() if isinstance(row, str) else json.dumps(row).encode()
