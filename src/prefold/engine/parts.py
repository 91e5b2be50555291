"""Engine parts: what an engine is put together from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from secrets import randbits

from transformers import PreTrainedTokenizerBase

from prefold.cache import PrefixCache
from prefold.engine.adapter import AdapterHost
from prefold.engine.batch import Runner
from prefold.engine.kv_store import KvStore
from prefold.engine.model_settings import ModelSettings
from prefold.engine.prompt_mixer import PromptMixer
from prefold.engine.sampler import Sampler
from prefold.identity.fingerprint import Fingerprint


def _random_seed() -> int:
    return randbits(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrigin:
    """Where a model came from, so that its next version can be loaded in the same way.

    Attributes:
        source: A directory or a hub id.
        settings: How it was loaded.
        store: Its KV, which the next version goes on using.
    """

    source: str
    settings: ModelSettings
    store: KvStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What an engine is put together from; it becomes the only user of them.

    Attributes:
        fingerprint: Of the model behind ``runner``; what is cached is filed under it.
        tokenizer: For prompts and replies as text; None allows token ids only.
        mixer: For prompts with images or embeddings; None allows none.
        origin: Of the model; None for one that cannot be loaded again.
        adapter_host: What the model offers to adapters; None for one that takes none.
        clock: Seconds, never decreasing.
        entropy: Seeds for requests that name none.
    """

    cache: PrefixCache
    runner: Runner
    sampler: Sampler
    fingerprint: Fingerprint
    tokenizer: PreTrainedTokenizerBase | None = None
    mixer: PromptMixer | None = None
    origin: ModelOrigin | None = None
    adapter_host: AdapterHost | None = None
    clock: Callable[[], float] = time.monotonic
    entropy: Callable[[], int] = _random_seed
