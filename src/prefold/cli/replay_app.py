"""The command ``prefold replay``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefold.cli.arguments import AsJson
from prefold.cli.lazy import load_light
from prefold.cli.replay_options import ReplayOptions


def replay(  # noqa: PLR0913 -- typer reads the options off the signature
    *,
    trace: Annotated[Path, typer.Argument(help="JSON lines, plain or gzip.")],
    policies: Annotated[
        str | None,
        typer.Option(help='Eviction policies, such as "lru". [default: all there are]'),
    ] = None,
    capacities: Annotated[
        str,
        typer.Option(help="Blocks, or percent of the trace's distinct blocks."),
    ] = "1%,3%,10%",
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block of the file. [default: as it tells]"),
    ] = None,
    merge: Annotated[
        int, typer.Option(min=1, help="Make one block of so many of the file's.")
    ] = 1,
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="compact, sessions, mooncake or openai. [default: as the first row tells]",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a file with anything wrong in it.")
    ] = False,
    ms_per_token: Annotated[
        float, typer.Option(min=0, help="Prefill of a token that nothing stands before.")
    ] = 0.1,
    ms_per_1k_depth: Annotated[
        float, typer.Option(min=0, help="More for every 1,000 tokens before it.")
    ] = 0.01,
    rank_by_cost: Annotated[
        bool,
        typer.Option("--rank-by-cost", help="Keep what saves most time, not most tokens."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show what eviction policies would have hit on a recorded trace."""
    options = ReplayOptions(
        trace=trace,
        policies=policies,
        capacities=capacities,
        block_size=block_size,
        merge=merge,
        trace_format=trace_format,
        is_strict=strict,
        ms_per_token=ms_per_token,
        ms_per_1k_depth=ms_per_1k_depth,
        ranks_by_cost=rank_by_cost,
        as_json=as_json,
    )
    return load_light("prefold.cli.replay", "run_replay")(options)
