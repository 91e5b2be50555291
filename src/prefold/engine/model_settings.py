"""Model settings: how a model is loaded, and how much of what it computes is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypedDict

import torch

from prefold.engine.image_limits import ImageLimits
from prefold.engine.loading import LoadOptions
from prefold.engine.quantization import QUANTIZED
from prefold.errors import ConfigError
from prefold.eviction.quota import NO_QUOTAS, QuotaSettings
from prefold.eviction.registry import DEFAULT_POLICY, check_policy

#: Threads beyond these only wait for each other.
_THREADS_PER_CORE = 4
_MIN_THREAD_LIMIT = 8

_DTYPES = MappingProxyType(
    {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
)
_KV_DTYPES = MappingProxyType({**_DTYPES, "int8": QUANTIZED})


class ModelArguments(TypedDict, total=False):
    """The settings as arguments; see ``ModelSettings``."""

    cache_memory: str | int | None
    cache_blocks: int | None
    block_size: int
    dtype: str
    kv_dtype: str | None
    max_model_len: int | None
    num_threads: int | None
    device: str
    position_offset: int
    eviction_policy: str
    quotas: QuotaSettings
    attention: str | None
    image_limits: ImageLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How a model is loaded, and how much of what it computes can be kept.

    Attributes:
        cache_memory: Of all blocks, such as ``"4GiB"`` or a number of bytes; None takes
            a share of the free memory.
        cache_blocks: The same as a number of blocks; only one of the two may be given.
        block_size: Token positions in a block.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        kv_dtype: Of the cached KV: one of the same, or ``"int8"``; None for ``dtype``.
        max_model_len: Tokens of prompt and reply; None for what the model allows.
        num_threads: Threads of torch; None leaves them.
        device: Such as ``"cpu"`` or ``"cuda"``.
        position_offset: Added to every position.
        eviction_policy: What goes first when blocks run out: ``"value"``, ``"lru"`` or
            ``"lfu"``.
        quotas: What is whose of the blocks.
        attention: ``"cpu"``, the compiled kernel, or ``"reference"``; None for what the
            environment's ``PREFOLD_ATTENTION`` says, or the fastest there is.
        image_limits: How many images a request may have, and how large.
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
    eviction_policy: str = DEFAULT_POLICY
    quotas: QuotaSettings = NO_QUOTAS
    attention: str | None = None
    image_limits: ImageLimits = field(default_factory=ImageLimits)
    rehash: bool = False

    def __post_init__(self) -> None:
        for name in ("cache_blocks", "max_model_len", "num_threads"):
            if getattr(self, name) is not None:
                _check_whole(name, getattr(self, name))
        for name in ("block_size", "position_offset"):
            _check_whole(name, getattr(self, name))
        check_policy(self.eviction_policy)
        if not isinstance(self.quotas, QuotaSettings):
            raise ConfigError("quotas must be QuotaSettings")
        for name in ("dtype", "device"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise ConfigError(f"{name} must be a text, got a {type(value).__name__}")


def load_options(settings: ModelSettings) -> LoadOptions:
    """Return how the loader is to do it.

    Raises:
        ConfigError: There is no such device, dtype or number of threads.
    """
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
        attention=settings.attention,
    )


def kv_dtype_of(settings: ModelSettings) -> torch.dtype:
    """Return the dtype of the cached KV.

    Raises:
        ConfigError: There is no such dtype, or it is not that of the weights nor narrower.
    """
    dtype = _dtype("dtype", settings.dtype)
    if settings.kv_dtype is None:
        return dtype
    kv_dtype = _dtype("kv_dtype", settings.kv_dtype, _KV_DTYPES)
    if kv_dtype is not QUANTIZED and dtype not in (kv_dtype, torch.float32):
        raise ConfigError(
            f"kv_dtype must be int8 or the same as dtype ({settings.dtype}) unless that is "
            f"float32, got {settings.kv_dtype}"
        )
    return kv_dtype


def _check_whole(name: str, value: object) -> None:
    # A bool is an int to Python, and never meant as one here.
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got a {type(value).__name__}")


def _check_threads(num_threads: int | None) -> None:
    limit = max(_MIN_THREAD_LIMIT, _THREADS_PER_CORE * (os.cpu_count() or 1))
    if num_threads is not None and not 1 <= num_threads <= limit:
        raise ConfigError(
            f"num_threads must be from 1 to {limit} on this machine, got {num_threads}"
        )


def _dtype(
    name: str, value: str, known: Mapping[str, torch.dtype] = _DTYPES
) -> torch.dtype:
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return known[value]
