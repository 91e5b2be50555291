"""Options of ``advise``, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prefold.cli.arguments import AsJson, MsPer1kDepth, MsPerToken, Strict


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseOptions:
    """What ``advise`` is to do.

    Attributes:
        source: A trace of block ids, or a log of requests.
        report: Where the page goes; None for none.
        capacity: Of the cache, such as "40GiB"; None for one that holds everything.
        machine_memory: All memory for KV that the machine has.
        ms_per_token: Of prefill, where nothing stands before.
        ms_per_1k_depth: A token's prefill more for every 1,000 tokens before it.
        ms_per_output_token: Of a step, divided by the replies that it goes on with.
        bytes_per_token: Of KV.
        tokenizer: A directory with the model's tokenizer; None for none.
        block_size: Tokens in a block; None tells it from the file, or takes 16.
        trace_format: A format's name; None tells it from the rows.
        is_strict: Refuse a file that has anything wrong with it.
    """

    source: Annotated[
        Path,
        typer.Argument(
            metavar="LOG_OR_TRACE",
            help="JSON lines, plain or gzip: block ids, or bodies of requests.",
        ),
    ]
    report: Annotated[
        Path | None, typer.Option(help="Write all of it as one HTML page, too.")
    ] = None
    capacity: Annotated[
        str | None,
        typer.Option(help='Of the cache, such as "40GiB". [default: holds everything]'),
    ] = None
    machine_memory: Annotated[
        str, typer.Option(help="What the machine has for KV: it is what memory costs.")
    ] = "80GiB"
    ms_per_token: MsPerToken = 0.1
    ms_per_1k_depth: MsPer1kDepth = 0.01
    ms_per_output_token: Annotated[
        float,
        typer.Option(min=0, help="A decode step, divided by the replies in a batch."),
    ] = 1.0
    bytes_per_token: Annotated[
        float, typer.Option(min=1, help="KV of a token: 128 KiB is that of an 8B model.")
    ] = 131_072
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="The model's directory, to count tokens. [default: by bytes]"),
    ] = None
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block. [default: as the file tells, or 16]"),
    ] = None
    trace_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="compact, sessions, mooncake or openai. [default: as the rows tell]",
        ),
    ] = None
    is_strict: Strict = False
    as_json: AsJson = False
