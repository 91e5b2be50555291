"""The command ``prefold advise``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefold.cli.advise_options import AdviseOptions
from prefold.cli.arguments import AsJson
from prefold.cli.lazy import load_light


def advise(  # noqa: PLR0913 -- typer reads the options off the signature
    *,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="LOG_OR_TRACE",
            help="JSON lines, plain or gzip: block ids, or bodies of requests.",
        ),
    ],
    report: Annotated[
        Path | None, typer.Option(help="Write all of it as one HTML page, too.")
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(help='Of the cache, such as "40GiB". [default: holds everything]'),
    ] = None,
    machine_memory: Annotated[
        str, typer.Option(help="What the machine has for KV: it is what memory costs.")
    ] = "80GiB",
    ms_per_token: Annotated[
        float, typer.Option(min=0, help="Prefill of a token that nothing stands before.")
    ] = 0.1,
    ms_per_1k_depth: Annotated[
        float, typer.Option(min=0, help="More for every 1,000 tokens before it.")
    ] = 0.01,
    ms_per_output_token: Annotated[
        float,
        typer.Option(min=0, help="A decode step, divided by the replies in a batch."),
    ] = 1.0,
    bytes_per_token: Annotated[
        float, typer.Option(min=1, help="KV of a token: 128 KiB is that of an 8B model.")
    ] = 131_072,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The model's directory, to count tokens. [default: by bytes]"),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block. [default: as the file tells, or 16]"),
    ] = None,
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="compact, sessions, mooncake or openai. [default: as the rows tell]",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a file with anything wrong in it.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Say from recorded traffic whether a prefix cache pays, and what breaks prefixes."""
    options = AdviseOptions(
        source=source,
        report=report,
        capacity=capacity,
        machine_memory=machine_memory,
        ms_per_token=ms_per_token,
        ms_per_1k_depth=ms_per_1k_depth,
        ms_per_output_token=ms_per_output_token,
        bytes_per_token=bytes_per_token,
        tokenizer=tokenizer,
        block_size=block_size,
        trace_format=trace_format,
        is_strict=strict,
        as_json=as_json,
    )
    return load_light("prefold.cli.advise", "run_advise")(options)
