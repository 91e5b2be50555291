"""Engine parts: what an engine is put together from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from secrets import randbits

from transformers import PreTrainedTokenizerBase

from prefold.cache import PrefixCache
from prefold.engine.batch import Runner
from prefold.engine.sampler import Sampler
from prefold.identity.fingerprint import Fingerprint


def _random_seed() -> int:
    return randbits(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """What an engine is put together from; it becomes the only user of them.

    Attributes:
        fingerprint: Of the model behind ``runner``; what is cached is filed under it.
        tokenizer: For prompts and replies as text; None allows token ids only.
        clock: Seconds, never decreasing.
        entropy: Seeds for requests that name none.
    """

    cache: PrefixCache
    runner: Runner
    sampler: Sampler
    fingerprint: Fingerprint
    tokenizer: PreTrainedTokenizerBase | None = None
    clock: Callable[[], float] = time.monotonic
    entropy: Callable[[], int] = _random_seed
