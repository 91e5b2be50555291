"""Options: what was asked for on the command line, as values."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    cache_memory: str | None = None
    cache_blocks: int | None = None
    cache_policy: str | None = None
    block_size: int = 16
    dtype: str | None = None
    device: str = "cpu"
    threads: int | None = None
    max_model_len: int | None = None
    position_offset: int = 0
    rehash: bool = False
    kv_dtype: str | None = None
    attention: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How a reply is drawn; ranges are checked where they are used."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None


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
