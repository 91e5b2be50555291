"""Options: what was asked for on the command line, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from prefold.cli.arguments import (
    Attention,
    BlockSize,
    CacheBlocks,
    CacheMemory,
    CachePolicy,
    Device,
    Dtype,
    KvDtype,
    MaxModelLen,
    PositionOffset,
    Rehash,
    Threads,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how it is run; ``None`` leaves the choice to the engine.

    Attributes:
        model: A directory or a hub id; ``None`` is the demo model.
        cache_memory: A size such as "4GiB".
        cache_policy: Name of the eviction policy.
        attention: "cpu" or "reference".
        rehash: Digest the weights again instead of trusting what is remembered.
    """

    model: str | None = None
    cache_memory: CacheMemory = None
    cache_blocks: CacheBlocks = None
    cache_policy: CachePolicy = None
    block_size: BlockSize = 16
    dtype: Dtype = None
    kv_dtype: KvDtype = None
    attention: Attention = None
    device: Device = "cpu"
    threads: Threads = None
    max_model_len: MaxModelLen = None
    position_offset: PositionOffset = 0
    rehash: Rehash = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How a reply is drawn; ranges are checked where they are used."""

    max_tokens: Annotated[int, typer.Option(help="Tokens of the reply at most.")] = 128
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Keep the likeliest, up to this sum.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Keep so many of the likeliest; 0: all.")] = 0
    min_p: Annotated[
        float,
        typer.Option(help="Drop what is less likely than this share of the likeliest."),
    ] = 0.0
    seed: Annotated[int | None, typer.Option(help="Equal seeds, equal replies.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What ``generate`` is to do.

    Attributes:
        chat: Whether the chat template is applied; ``None`` if the model has one.
        system: The system part of a chat.
        repeat: How often the same prompt is asked.
    """

    model: ModelOptions
    sampling: SamplingOptions
    prompt: str = field(repr=False)
    chat: bool | None
    system: str | None = field(repr=False)
    repeat: int
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What ``demo`` is to do."""

    model: ModelOptions
    as_json: bool
