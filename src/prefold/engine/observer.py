"""Observer: who is told what an engine has done, for metrics."""

from __future__ import annotations

from typing import Protocol

from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestOutput


class EngineObserver(Protocol):
    """Told on the engine's thread, between steps; must be quick and must not raise."""

    def on_step(self, seconds: float, num_computed_tokens: int) -> None:
        """Take note of a step that was carried out."""

    def on_finished(self, output: RequestOutput, options: RequestOptions) -> None:
        """Take note of a request that has ended, however it did."""


class NoObserver:
    """Nobody is told anything."""

    __slots__ = ()

    def on_step(self, seconds: float, num_computed_tokens: int) -> None:
        """Take note of nothing."""

    def on_finished(self, output: RequestOutput, options: RequestOptions) -> None:
        """Take note of nothing."""
