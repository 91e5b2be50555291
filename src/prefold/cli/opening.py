"""Opening: a model and its engine for one command, closed again whatever happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from prefold.cli.console import Screen, format_bytes
from prefold.cli.options import ModelOptions
from prefold.engine.assembly import Assembly, assemble
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.eviction.registry import DEFAULT_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is loaded, and what it can hold.

    Attributes:
        is_exact: Whether equal bits with and without the cache are promised.
        exactness: That promise, or why there is none, as a sentence.
    """

    name: str
    num_parameters: int
    weight_bytes: int
    dtype: str
    device: str
    num_threads: int
    max_model_len: int
    num_blocks: int
    block_size: int
    block_bytes: int
    attention: str
    is_exact: bool
    exactness: str

    @property
    def capacity_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def token_bytes(self) -> int:
        return self.block_bytes // self.block_size

    @property
    def cache_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def lines(self) -> list[str]:
        """Return the first lines of every command: what is loaded, and how."""
        model = (
            f"{self.name}, {self.num_parameters / 1e6:,.1f} million parameters, "
            f"{format_bytes(self.weight_bytes)} in {self.dtype} on {self.device} with "
            f"{self.num_threads} threads"
        )
        cache = (
            f"{self.capacity_tokens:,} tokens in {format_bytes(self.cache_bytes)}: "
            f"{self.num_blocks:,} blocks of {self.block_size} tokens, "
            f"{format_bytes(self.token_bytes)} a token"
        )
        return [
            f"Model: {model}.",
            f"Cache: {cache}.",
            f"Attention: {self.attention}. {self.exactness}",
        ]

    def to_json(self) -> dict[str, object]:
        """Return them as a value of plain numbers and texts."""
        return {
            "model": self.name,
            "parameters": self.num_parameters,
            "weight_bytes": self.weight_bytes,
            "dtype": self.dtype,
            "device": self.device,
            "threads": self.num_threads,
            "max_model_len": self.max_model_len,
            "cache_blocks": self.num_blocks,
            "block_size": self.block_size,
            "cache_tokens": self.capacity_tokens,
            "cache_bytes": self.cache_bytes,
            "attention": self.attention,
            "exact": self.is_exact,
            "exactness": self.exactness,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An engine, and what a command needs to know of it."""

    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    facts: Facts
    load_s: float


@contextmanager
def open_session(options: ModelOptions, screen: Screen) -> Iterator[Session]:
    """Load a model, show each step of it, and close its engine at the end.

    Raises:
        ConfigError: The model or an option cannot be used.
    """
    started_at = time.monotonic()
    assembly = assemble(options.model, _settings(options), screen)
    engine = Engine(assembly.parts, assembly.config)
    try:
        screen.end()
        yield Session(
            engine=engine,
            tokenizer=assembly.loaded.tokenizer,
            facts=_facts(assembly),
            load_s=time.monotonic() - started_at,
        )
    finally:
        engine.close()


def _settings(options: ModelOptions) -> ModelSettings:
    return ModelSettings(
        cache_memory=options.cache_memory,
        cache_blocks=options.cache_blocks,
        block_size=options.block_size,
        dtype=options.dtype or "float32",
        kv_dtype=options.kv_dtype,
        max_model_len=options.max_model_len,
        num_threads=options.threads,
        device=options.device,
        position_offset=options.position_offset,
        eviction_policy=options.cache_policy or DEFAULT_POLICY,
        rehash=options.rehash,
    )


def _facts(assembly: Assembly) -> Facts:
    loaded, exactness = assembly.loaded, assembly.exactness
    parameters = list(loaded.model.parameters())
    path = Path(assembly.source)
    promise = "promised" if exactness.is_exact else "not promised"
    return Facts(
        name=path.resolve().name if path.is_dir() else assembly.source,
        num_parameters=sum(parameter.numel() for parameter in parameters),
        weight_bytes=sum(parameter.nbytes for parameter in parameters),
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        num_threads=assembly.numerics.num_threads,
        max_model_len=assembly.config.limits.max_model_len,
        num_blocks=assembly.num_blocks,
        block_size=assembly.layout.block_size,
        block_bytes=assembly.layout.block_bytes,
        attention=assembly.numerics.attention,
        is_exact=exactness.is_exact,
        exactness=f"Exactness is {promise}: {exactness.detail}.",
    )
