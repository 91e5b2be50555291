"""Arguments: how options that several commands have are typed, and what they mean."""

from __future__ import annotations

from typing import Annotated

import typer

_MODEL_HELP = "A model's directory or hub id. [default: the demo model, 92 MB to fetch]"
_BLOCK_SIZE = typer.Option(min=1, help="Tokens in a block.")
_DEVICE = typer.Option(help="Where to compute, such as cpu.")
_POSITION_OFFSET = typer.Option(min=0, help="Added to every token's position.")

ModelArgument = Annotated[str | None, typer.Argument(help=_MODEL_HELP)]
ModelOption = Annotated[str | None, typer.Option("--model", help=_MODEL_HELP)]
CacheMemory = Annotated[
    str | None,
    typer.Option(
        help='Memory for cached KV, such as "4GiB". [default: a share of what is free]'
    ),
]
CacheBlocks = Annotated[
    int | None, typer.Option(min=1, help="Blocks of cached KV, instead of a memory size.")
]
CachePolicy = Annotated[
    str | None,
    typer.Option(help="What is evicted first: value, lru or lfu. [default: value]"),
]
BlockSize = Annotated[int, _BLOCK_SIZE]
Dtype = Annotated[
    str | None, typer.Option(help="Of the computation: float32, bfloat16 ...")
]
KvDtype = Annotated[
    str | None,
    typer.Option(help="Of the cached KV, also int8. [default: the computation's]"),
]
Attention = Annotated[
    str | None, typer.Option(help="cpu, the compiled kernel, or reference.")
]
Device = Annotated[str, _DEVICE]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to compute with.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        min=2, help="Tokens of prompt and reply at most. [default: the model's own]"
    ),
]
PositionOffset = Annotated[int, _POSITION_OFFSET]
Rehash = Annotated[
    bool,
    typer.Option("--rehash", help="Digest the weights again; trust no remembered digest."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse a file with anything wrong in it.")
]
MsPerToken = Annotated[
    float, typer.Option(min=0, help="Prefill of a token that nothing stands before.")
]
MsPer1kDepth = Annotated[
    float, typer.Option(min=0, help="More for every 1,000 tokens before it.")
]

# The same where a configuration file may say it instead.
BlockSizeOrFile = Annotated[int | None, _BLOCK_SIZE]
DeviceOrFile = Annotated[str | None, _DEVICE]
PositionOffsetOrFile = Annotated[int | None, _POSITION_OFFSET]
