"""Observer: who is told what an engine has done, for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from prefold.blocks.table import TokenIds
from prefold.cache import Access
from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestOutput
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsedPath:
    """What a sequence that has ended used of the cache.

    Attributes:
        tokens: Of its prompt and its reply; a view that nobody may keep or change.
        num_prompt_tokens: Those of its prompt.
        num_cached_tokens: Of those, the ones that hit.
        num_computed_tokens: Leading tokens that came to have KV, cached ones included.
        access: Whether it looked anything up, and left anything behind.
        fingerprint: That of the model served.
    """

    tokens: TokenIds = field(repr=False)
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    domain: Domain
    access: Access
    fingerprint: Fingerprint


class EngineObserver(Protocol):
    """Told on the engine's thread, between steps; must be quick and must not raise."""

    def on_step(self, seconds: float, num_computed_tokens: int) -> None:
        """Take note of a step that was carried out."""

    def on_finished(self, output: RequestOutput, options: RequestOptions) -> None:
        """Take note of a request that has ended, however it did."""

    def on_used(self, path: UsedPath) -> None:
        """Take note of what one of them used, if it ever had a place in the cache.

        Not told of requests that approve a prefix, which are an operator's, nor of those
        that another model than the present one computed.
        """


class NoObserver:
    """Nobody is told anything."""

    __slots__ = ()

    def on_step(self, seconds: float, num_computed_tokens: int) -> None:
        """Take note of nothing."""

    def on_finished(self, output: RequestOutput, options: RequestOptions) -> None:
        """Take note of nothing."""

    def on_used(self, path: UsedPath) -> None:
        """Take note of nothing."""
