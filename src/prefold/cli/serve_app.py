"""The command ``prefold serve``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

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
    MaxModelLen,
    ModelArgument,
    PositionOffsetOrFile,
    Rehash,
    Threads,
)
from prefold.cli.lazy import load_light
from prefold.cli.serve_options import ServeOptions


def serve(  # noqa: PLR0913 -- typer reads the options off the signature
    *,
    model: ModelArgument = None,
    host: Annotated[
        str | None, typer.Option(help="Address for clients. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port for clients. [default: 8000]"),
    ] = None,
    admin_host: Annotated[
        str | None, typer.Option(help="Address for operators. [default: 127.0.0.1]")
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port for operators. [default: 8001]"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A prefold.toml; options here win over it. "
            "[default: $PREFOLD_CONFIG, or prefold.toml in this directory]"
        ),
    ] = None,
    served_name: Annotated[
        str | None,
        typer.Option(help="What clients call the model. [default: its own name]"),
    ] = None,
    cache_memory: CacheMemory = None,
    cache_blocks: CacheBlocks = None,
    cache_policy: CachePolicy = None,
    block_size: BlockSizeOrFile = None,
    dtype: Dtype = None,
    device: DeviceOrFile = None,
    threads: Threads = None,
    max_model_len: MaxModelLen = None,
    position_offset: PositionOffsetOrFile = None,
    rehash: Rehash = False,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A LoRA adapter, and what clients call it; may be given several times.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Say where the server is as one JSON object."),
    ] = False,
) -> int:
    """Serve a model to OpenAI's clients."""
    options = ServeOptions(
        model=model,
        host=host,
        port=port,
        admin_host=admin_host,
        admin_port=admin_port,
        config=config,
        served_name=served_name,
        cache_memory=cache_memory,
        cache_blocks=cache_blocks,
        cache_policy=cache_policy,
        block_size=block_size,
        dtype=dtype,
        device=device,
        threads=threads,
        max_model_len=max_model_len,
        position_offset=position_offset,
        rehash=rehash,
        adapters=tuple(adapter or ()),
        as_json=as_json,
    )
    return load_light("prefold.cli.serve", "run_serve")(options)
