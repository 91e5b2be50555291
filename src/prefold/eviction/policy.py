"""Eviction policy: ranks idle leaves by what is known of them.

A policy sees facts, never nodes, tokens or blocks, so it cannot break the tree.
Leaves go first whatever it says: a run is offered only when nothing hangs below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFacts:
    """What a policy may know of a run of blocks.

    Attributes:
        created_at: When its oldest block was published, on the cache's clock.
        last_used_at: When a lease last came or went.
        num_hits: Leases that began by matching it.
        num_blocks: Blocks it holds.
        depth_tokens: Position of its first token.
        turn: How many requests, one extending the other, led to it.
        num_new_tokens: What the request that wrote it added to what was cached.
    """

    created_at: float
    last_used_at: float
    num_hits: int
    num_blocks: int
    depth_tokens: int
    turn: int = 0
    num_new_tokens: int = 0


class Rank(NamedTuple):
    """What a leaf is worth, and for how long that can be said.

    Attributes:
        score: The lowest goes first.
        until: When it has to be asked for again, on the cache's clock.
    """

    score: float
    until: float = math.inf


class EvictionPolicy(Protocol):
    """Ranks idle leaves, and learns from what becomes of them. Owned by one cache."""

    @property
    def name(self) -> str:
        """The name it is registered, shown and explained under."""
        ...

    def rank(self, facts: LeafFacts, now: float) -> Rank:
        """Return what an idle leaf is worth at this moment."""
        ...

    def note_hit(self, facts: LeafFacts, now: float) -> None:
        """Learn that a lease is about to use a run, idle or not, again."""
        ...

    def note_eviction(self, facts: LeafFacts, score: float, now: float) -> None:
        """Learn that a leaf, or its tail, is about to go, and what its score was."""
        ...
