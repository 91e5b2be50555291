"""Options of ``prefold serve``: what was asked for, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prefold.cli.arguments import (
    BlockSizeOrFile,
    CacheBlocks,
    CacheMemory,
    CachePolicy,
    DeviceOrFile,
    Dtype,
    KvDtype,
    MaxModelLen,
    ModelArgument,
    PositionOffsetOrFile,
    Rehash,
    Threads,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says; None leaves it to the configuration file.

    Attributes:
        config: The file; None looks for one.
        rehash: Digest the weights again instead of trusting what is remembered.
        adapters: Names and directories, each as ``NAME=PATH``.
        as_json: Say where the server is as one JSON object.
    """

    model: ModelArgument = None
    host: Annotated[
        str | None, typer.Option(help="Address for clients. [default: 127.0.0.1]")
    ] = None
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port for clients. [default: 8000]"),
    ] = None
    admin_host: Annotated[
        str | None, typer.Option(help="Address for operators. [default: 127.0.0.1]")
    ] = None
    admin_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port for operators. [default: 8001]"),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            help="A prefold.toml; options here win over it. "
            "[default: $PREFOLD_CONFIG, or prefold.toml in this directory]"
        ),
    ] = None
    served_name: Annotated[
        str | None,
        typer.Option(help="What clients call the model. [default: its own name]"),
    ] = None
    cache_memory: CacheMemory = None
    cache_blocks: CacheBlocks = None
    cache_policy: CachePolicy = None
    block_size: BlockSizeOrFile = None
    dtype: Dtype = None
    kv_dtype: KvDtype = None
    device: DeviceOrFile = None
    threads: Threads = None
    max_model_len: MaxModelLen = None
    position_offset: PositionOffsetOrFile = None
    rehash: Rehash = False
    adapters: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            metavar="NAME=PATH",
            help="A LoRA adapter, and what clients call it; may be given several times.",
        ),
    ] = None
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Say where the server is as one JSON object."),
    ] = False
