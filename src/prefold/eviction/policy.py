"""Eviction policy: ranks idle leaves by what is known of them.

A policy sees facts, never nodes, tokens or blocks, so it cannot break the tree.
Leaves go first whatever it says: a run is offered only when nothing hangs below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFacts:
    """What a policy may know of an idle leaf.

    Attributes:
        created_at: When its oldest block was published, on the cache's clock.
        last_used_at: When a lease last came or went.
        num_hits: Leases that began by matching it.
        num_blocks: Blocks it holds.
        depth_tokens: Position of its first token.
    """

    created_at: float
    last_used_at: float
    num_hits: int
    num_blocks: int
    depth_tokens: int


class EvictionPolicy(Protocol):
    """Gives every idle leaf a score; the lowest goes first.

    The order of two scores must not change as time passes, so that each is computed
    once, when its leaf becomes idle.
    """

    @property
    def name(self) -> str:
        """The name it is registered, shown and explained under."""
        ...

    def score(self, facts: LeafFacts) -> float:
        """Return the leaf's score."""
        ...
