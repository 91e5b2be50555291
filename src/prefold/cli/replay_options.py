"""Options of ``replay``, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prefold.cli.arguments import AsJson, MsPer1kDepth, MsPerToken, Strict


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

    trace: Annotated[Path, typer.Argument(help="JSON lines, plain or gzip.")]
    policies: Annotated[
        str | None,
        typer.Option(help='Eviction policies, such as "lru". [default: all there are]'),
    ] = None
    capacities: Annotated[
        str,
        typer.Option(help="Blocks, or percent of the trace's distinct blocks."),
    ] = "1%,3%,10%"
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block of the file. [default: as it tells]"),
    ] = None
    merge: Annotated[
        int, typer.Option(min=1, help="Make one block of so many of the file's.")
    ] = 1
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="compact, sessions, mooncake or openai. [default: as the first row tells]",
        ),
    ] = None
    is_strict: Strict = False
    ms_per_token: MsPerToken = 0.1
    ms_per_1k_depth: MsPer1kDepth = 0.01
    ranks_by_cost: Annotated[
        bool,
        typer.Option("--rank-by-cost", help="Keep what saves most time, not most tokens."),
    ] = False
    as_json: AsJson = False
