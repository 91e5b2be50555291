"""Least recently used: the leaf that no lease touched for longest goes first."""

from __future__ import annotations

from prefold.eviction.policy import LeafFacts


class Lru:
    """Scores a leaf by when a lease last came or went."""

    __slots__ = ()

    name = "lru"

    def score(self, facts: LeafFacts) -> float:
        return facts.last_used_at
