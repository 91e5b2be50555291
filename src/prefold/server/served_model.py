"""The served model: what clients call it, and what the server needs of it.

The engine may change its model at any time. So nobody keeps a ``ServedModel`` beyond one
request: it is asked for, and so is whatever is made of it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from transformers import PreTrainedTokenizerBase

from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import ModelLimits
from prefold.engine.prompt_mixer import ImageReader, NoImages
from prefold.errors import ModelChangedError
from prefold.identity.fingerprint import Fingerprint

_T = TypeVar("_T")
_R = TypeVar("_R")

#: How often a request is read again because the model has changed meanwhile.
_MAX_READINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The one model of a server.

    Attributes:
        name: What requests name it by.
        created: When it was loaded, in seconds since 1970.
        adapter: The name of the adapter that requests pass; None for the model as it is.
        images: What makes prompts of its images.
    """

    name: str
    created: int
    tokenizer: PreTrainedTokenizerBase
    limits: ModelLimits
    fingerprint: Fingerprint
    adapter: str | None = None
    images: ImageReader = NoImages("this model takes no images; send text only")  # noqa: RUF009 -- frozen

    def with_adapter(self, name: str, fingerprint: Fingerprint) -> ServedModel:
        """Return what requests for an adapter are served by."""
        return replace(self, name=name, adapter=name, fingerprint=fingerprint)

    @property
    def system_fingerprint(self) -> str:
        """A short name for everything that shapes its replies."""
        return system_fingerprint(self.fingerprint)


def system_fingerprint(fingerprint: Fingerprint) -> str:
    """Return a short name for everything that shapes a model's replies."""
    return f"fp_{fingerprint.digest().hex()[:12]}"


class CurrentModel:
    """The model that an engine serves at this moment. Used on one event loop.

    Args:
        engine: Whose.
        first: The model it began with; later ones go by the same name.
        clock: Seconds since 1970.
    """

    __slots__ = ("_clock", "_engine", "_model")

    def __init__(
        self,
        engine: AsyncEngine,
        first: ServedModel,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._model = first
        self._clock = clock

    def get(self) -> ServedModel:
        """Return it; the same object for as long as it is the same model."""
        core, known = self._engine.engine, self._model
        parts, limits = core.parts, core.config.limits
        if parts.fingerprint != known.fingerprint or limits != known.limits:
            tokenizer = known.tokenizer if parts.tokenizer is None else parts.tokenizer
            self._model = replace(
                known,
                created=int(self._clock()),
                tokenizer=tokenizer,
                limits=limits,
                fingerprint=parts.fingerprint,
                images=known.images if parts.mixer is None else parts.mixer.images,
            )
        return self._model


class PerModel(Generic[_T]):
    """What is made of the served model, made anew when that changes. On one event loop."""

    __slots__ = ("_made", "_make", "_models")

    def __init__(self, models: CurrentModel, make: Callable[[ServedModel], _T]) -> None:
        self._models = models
        self._make = make
        model = models.get()
        self._made = (model, make(model))

    def get(self) -> _T:
        """Return what is made of the model of this moment."""
        model = self._models.get()
        if model is not self._made[0]:
            self._made = (model, self._make(model))
        return self._made[1]

    async def serve(self, ask: Callable[[_T], Awaitable[_R]]) -> _R:
        """Return what ``ask`` returns; ask again if the model has changed meanwhile.

        Raises:
            ModelChangedError: It has changed each time.
            Exception: Whatever else ``ask`` raises.
        """
        for _ in range(_MAX_READINGS - 1):
            try:
                return await ask(self.get())
            except ModelChangedError:
                continue
        return await ask(self.get())
