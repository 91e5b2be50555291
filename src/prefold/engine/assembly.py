"""Assembly: from a model's name and a few settings to the parts of an engine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from prefold.blocks.layout import KvLayout
from prefold.cache import PrefixCache
from prefold.engine.checked_model import check_model
from prefold.engine.config import EngineConfig, parse_memory
from prefold.engine.demo_model import SetupProgress, ensure_demo_model
from prefold.engine.free_memory import DEFAULT_SHARE, free_memory_bytes
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel
from prefold.engine.model_runner import ModelRunner
from prefold.engine.model_settings import ModelSettings, kv_dtype_of, load_options
from prefold.engine.numerics import Numerics
from prefold.engine.parts import EngineParts, ModelOrigin
from prefold.engine.prompt_mixer import PromptMixer
from prefold.engine.row_probe import Exactness
from prefold.engine.sampler import Sampler
from prefold.errors import ConfigError
from prefold.identity.secret import MasterSecret, default_secret_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The parts of an engine over a real model, and what there is to say about them.

    Attributes:
        source: The model's directory or hub id.
        exactness: Whether equal bits with and without the cache can be promised.
    """

    source: str
    parts: EngineParts
    config: EngineConfig
    loaded: LoadedModel
    mixer: PromptMixer
    layout: KvLayout
    num_blocks: int
    kv_dtype: torch.dtype
    numerics: Numerics
    exactness: Exactness

    @property
    def num_cache_tokens(self) -> int:
        """Tokens that fit into the blocks."""
        return self.num_blocks * self.layout.block_size

    @property
    def cache_bytes(self) -> int:
        """Memory of all blocks."""
        return self.num_blocks * self.layout.block_bytes


class Silence:
    """Setup progress that nobody watches."""

    __slots__ = ()

    def begin(self, step: str, total_bytes: int | None) -> None:
        """Take note of nothing."""

    def advance(self, done_bytes: int) -> None:
        """Take note of nothing."""


def assemble(
    source: str | os.PathLike[str] | None,
    settings: ModelSettings,
    progress: SetupProgress | None = None,
) -> Assembly:
    """Load a model and make everything an engine needs around it.

    Args:
        source: A directory or a hub id; None for the demo model.
        settings: How.
        progress: Told about the steps that take a while.

    Raises:
        ConfigError: The model or a setting cannot be used; one sentence.
    """
    progress = progress or Silence()
    # Before anything is fetched or read.
    load_options(settings)
    kv_dtype_of(settings)
    _check_memory(settings)
    if source is None:
        source = ensure_demo_model(progress)
    try:
        return _assemble(os.fspath(source), settings, progress)
    except MemoryError as error:
        raise ConfigError(
            "there is not enough memory for the model and its KV; lower cache_memory or "
            "cache_blocks, or take a smaller model"
        ) from error


def _assemble(name: str, settings: ModelSettings, progress: SetupProgress) -> Assembly:
    num_blocks = 0

    def size_cache(loaded: LoadedModel, layout: KvLayout) -> None:
        nonlocal num_blocks
        num_blocks = resolve_num_blocks(settings, layout, loaded.device)

    model = check_model(name, settings, progress, size_cache)
    loaded, layout = model.loaded, model.layout
    try:
        store = KvStore(
            layout, num_blocks, dtype=kv_dtype_of(settings), device=loaded.device
        )
    except MemoryError as error:
        raise ConfigError(
            f"{num_blocks} blocks of {layout.block_bytes} bytes cannot be allocated; "
            "lower cache_memory or cache_blocks"
        ) from error
    parts = EngineParts(
        cache=PrefixCache(
            num_blocks=num_blocks,
            block_size=settings.block_size,
            clock=time.monotonic,
            policy=settings.eviction_policy,
            quotas=settings.quotas,
            master_secret=MasterSecret.load_or_create(default_secret_path()),
        ),
        runner=ModelRunner(loaded, store, row_multiple=model.exactness.row_multiple),
        sampler=Sampler(loaded.vocab_size),
        fingerprint=model.fingerprint,
        tokenizer=loaded.tokenizer,
        mixer=model.mixer,
        origin=ModelOrigin(source=name, settings=settings, store=store),
        adapter_host=loaded.adapter_host,
    )
    return Assembly(
        source=name,
        parts=parts,
        config=EngineConfig(limits=model.limits),
        loaded=loaded,
        mixer=model.mixer,
        layout=layout,
        num_blocks=num_blocks,
        kv_dtype=store.dtype,
        numerics=model.numerics,
        exactness=model.exactness,
    )


def resolve_num_blocks(
    settings: ModelSettings, layout: KvLayout, device: torch.device
) -> int:
    """Return how many blocks the settings and the free memory give.

    Raises:
        ConfigError: Both sizes are given, or there is not room for one block, or more is
            asked for than is free.
    """
    _check_memory(settings)
    free_bytes = free_memory_bytes(device)
    if settings.cache_blocks is not None:
        num_blocks = settings.cache_blocks
    elif settings.cache_memory is not None:
        num_blocks = parse_memory(settings.cache_memory) // layout.block_bytes
    elif free_bytes is not None:
        num_blocks = int(free_bytes * DEFAULT_SHARE) // layout.block_bytes
    else:
        raise ConfigError("how much memory is free cannot be found out; give cache_memory")
    if num_blocks < 1:
        raise ConfigError(
            f"the cache memory holds not even one block: {layout.block_size} tokens of "
            f"this model take {layout.block_bytes} bytes; raise cache_memory or "
            "cache_blocks"
        )
    num_bytes = num_blocks * layout.block_bytes
    if free_bytes is not None and num_bytes > free_bytes:
        raise ConfigError(
            f"{num_blocks} blocks take {num_bytes} bytes, but only {free_bytes} bytes of "
            "memory are free; lower cache_memory or cache_blocks"
        )
    return num_blocks


def _check_memory(settings: ModelSettings) -> None:
    """Refuse before the model is loaded what needs no model to be seen."""
    if settings.cache_memory is None:
        return
    if settings.cache_blocks is not None:
        raise ConfigError("give cache_memory or cache_blocks, not both")
    parse_memory(settings.cache_memory)
