"""Assembly: from a model's name and a few settings to the parts of an engine."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from prefold.blocks.layout import KvLayout
from prefold.cache import PrefixCache
from prefold.engine.config import EngineConfig, ModelLimits, parse_memory
from prefold.engine.demo_model import SetupProgress, ensure_demo_model
from prefold.engine.digest_memory import DigestMemory
from prefold.engine.fingerprinting import KvFormat, build_fingerprint
from prefold.engine.free_memory import DEFAULT_SHARE, free_memory_bytes
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import (
    LoadedModel,
    LoadOptions,
    check_model_name,
    load_model,
)
from prefold.engine.model_runner import ModelRunner
from prefold.engine.numerics import Numerics, read_numerics
from prefold.engine.parts import EngineParts
from prefold.engine.row_probe import Exactness, probe_rows
from prefold.engine.sampler import Sampler
from prefold.engine.self_check import CheckMemory, ensure_checked
from prefold.engine.user_dirs import state_dir
from prefold.engine.weights_digest import digest_weights, find_weight_files, stamp_weights
from prefold.errors import ConfigError
from prefold.identity.fingerprint import Fingerprint
from prefold.identity.secret import MasterSecret, default_secret_path

#: Threads beyond these only wait for each other.
_THREADS_PER_CORE = 4
_MIN_THREAD_LIMIT = 8

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is loaded, and how much of what it computes can be kept.

    Attributes:
        cache_memory: Of all blocks, such as ``"4GiB"`` or a number of bytes; None takes
            a share of the free memory.
        cache_blocks: The same as a number of blocks; only one of the two may be given.
        block_size: Token positions in a block.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        kv_dtype: Of the cached KV; None for ``dtype``.
        max_model_len: Tokens of prompt and reply; None for what the model allows.
        num_threads: Threads of torch; None leaves them.
        device: Such as ``"cpu"`` or ``"cuda"``.
        position_offset: Added to every position.
        rehash: Read the weights again instead of trusting a remembered digest.

    Raises:
        ConfigError: A value has another type.
    """

    cache_memory: str | int | None = None
    cache_blocks: int | None = None
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str | None = None
    max_model_len: int | None = None
    num_threads: int | None = None
    device: str = "cpu"
    position_offset: int = 0
    rehash: bool = False

    def __post_init__(self) -> None:
        for name in ("cache_blocks", "max_model_len", "num_threads"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name))
        for name in ("block_size", "position_offset"):
            _check_whole(name, getattr(self, name))
        for name in ("dtype", "device"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigError(f"{name} must be a text, got a {type(value).__name__}")


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
    layout: KvLayout
    num_blocks: int
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
    options = _load_options(settings)
    kv_dtype = _kv_dtype(settings)
    _check_memory(settings)
    if source is None:
        source = ensure_demo_model(progress)
    name = os.fspath(source)
    check_model_name(name)
    try:
        return _assemble(name, settings, options, kv_dtype, progress)
    except MemoryError as error:
        raise ConfigError(
            "there is not enough memory for the model and its KV; lower cache_memory or "
            "cache_blocks, or take a smaller model"
        ) from error


def _assemble(
    name: str,
    settings: ModelSettings,
    options: LoadOptions,
    kv_dtype: torch.dtype,
    progress: SetupProgress,
) -> Assembly:
    stamps = stamp_weights(Path(name))
    progress.begin("Loading the model", _weight_bytes(Path(name)))
    loaded = load_model(name, options)
    layout = loaded.layout(settings.block_size, kv_dtype)
    num_blocks = resolve_num_blocks(settings, layout, loaded.device)
    progress.begin("Trying whether rows keep their bits", None)
    exactness = probe_rows(loaded)
    numerics = read_numerics(loaded, row_multiple=exactness.row_multiple)
    fingerprint = _make_fingerprint(name, loaded, settings, numerics, progress)
    if stamp_weights(Path(name)) != stamps:
        raise ConfigError(
            f"the weights in {name} changed while they were loaded; try again when they "
            "are complete"
        )
    progress.begin("Checking the attention against the model's own", None)
    ensure_checked(
        loaded, fingerprint.digest(), CheckMemory(state_dir() / "self_checks.json")
    )
    try:
        store = KvStore(layout, num_blocks, dtype=kv_dtype, device=loaded.device)
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
            master_secret=MasterSecret.load_or_create(default_secret_path()),
        ),
        runner=ModelRunner(loaded, store, row_multiple=exactness.row_multiple),
        sampler=Sampler(loaded.vocab_size),
        fingerprint=fingerprint,
        tokenizer=loaded.tokenizer,
    )
    limits = ModelLimits(
        vocab_size=loaded.vocab_size,
        max_model_len=loaded.max_model_len,
        eos_token_ids=frozenset(loaded.eos_token_ids),
    )
    return Assembly(
        source=name,
        parts=parts,
        config=EngineConfig(limits=limits),
        loaded=loaded,
        layout=layout,
        num_blocks=num_blocks,
        numerics=numerics,
        exactness=exactness,
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


def _check_whole(name: str, value: object) -> None:
    # A bool is an int to Python, and never meant as one here.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got a {type(value).__name__}")


def _check_memory(settings: ModelSettings) -> None:
    """Refuse before the model is loaded what needs no model to be seen."""
    if settings.cache_memory is None:
        return
    if settings.cache_blocks is not None:
        raise ConfigError("give cache_memory or cache_blocks, not both")
    parse_memory(settings.cache_memory)


def _check_threads(num_threads: int | None) -> None:
    limit = max(_MIN_THREAD_LIMIT, _THREADS_PER_CORE * (os.cpu_count() or 1))
    if num_threads is not None and not 1 <= num_threads <= limit:
        raise ConfigError(
            f"num_threads must be from 1 to {limit} on this machine, got {num_threads}"
        )


def _load_options(settings: ModelSettings) -> LoadOptions:
    try:
        device = torch.device(settings.device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{settings.device!r} is no device; try 'cpu'") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be 'cpu' or 'cuda', got {settings.device!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device that torch can use; try device='cpu'")
    _check_threads(settings.num_threads)
    return LoadOptions(
        dtype=_dtype("dtype", settings.dtype),
        device=device,
        max_model_len=settings.max_model_len,
        position_offset=settings.position_offset,
        num_threads=settings.num_threads,
    )


def _kv_dtype(settings: ModelSettings) -> torch.dtype:
    dtype = _dtype("dtype", settings.dtype)
    if settings.kv_dtype is None:
        return dtype
    kv_dtype = _dtype("kv_dtype", settings.kv_dtype)
    if kv_dtype != dtype:
        raise ConfigError(
            f"kv_dtype must be the same as dtype ({settings.dtype}) so far, "
            f"got {settings.kv_dtype}"
        )
    return kv_dtype


def _dtype(name: str, value: str) -> torch.dtype:
    if value not in _DTYPES:
        raise ConfigError(f"{name} must be one of {', '.join(_DTYPES)}, got {value!r}")
    return _DTYPES[value]


def _weight_bytes(directory: Path) -> int | None:
    """Return the size of a local model's weights; None if there is no such directory."""
    if not directory.is_dir():
        return None
    sizes = (p.stat().st_size for p in find_weight_files(directory) if p.is_file())
    return sum(sizes) or None


def _make_fingerprint(
    name: str,
    loaded: LoadedModel,
    settings: ModelSettings,
    numerics: Numerics,
    progress: SetupProgress,
) -> Fingerprint:
    path = Path(name)
    has_begun = False

    def show(num_read: int, num_bytes: int) -> None:
        # Told only if there is something to read: mostly the digest is remembered.
        nonlocal has_begun
        if not has_begun:
            progress.begin("Reading the weights once, to know them again", num_bytes)
            has_begun = True
        progress.advance(num_read)

    weights = digest_weights(
        loaded.model,
        path if path.is_dir() else None,
        DigestMemory(state_dir() / "weights.json"),
        rehash=settings.rehash,
        progress=show,
    )
    return build_fingerprint(
        loaded.model,
        loaded.tokenizer,
        weights=weights,
        kv_format=KvFormat(
            dtype=_kv_dtype(settings),
            block_size=settings.block_size,
            position_offset=settings.position_offset,
        ),
        numerics=numerics.describe(),
    )
