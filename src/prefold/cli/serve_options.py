"""Options of ``prefold serve``: what was asked for, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says; None leaves it to the configuration file.

    Attributes:
        config: The file; None looks for one.
        rehash: Digest the weights again instead of trusting what is remembered.
        adapters: Names and directories, each as ``NAME=PATH``.
        as_json: Say where the server is as one JSON object.
    """

    model: str | None
    host: str | None
    port: int | None
    admin_host: str | None
    admin_port: int | None
    config: Path | None
    served_name: str | None
    cache_memory: str | None
    cache_blocks: int | None
    cache_policy: str | None
    block_size: int | None
    dtype: str | None
    device: str | None
    threads: int | None
    max_model_len: int | None
    position_offset: int | None
    rehash: bool
    as_json: bool
    adapters: tuple[str, ...] | None = None
