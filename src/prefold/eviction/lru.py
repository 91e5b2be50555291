"""Least recently used: the leaf that no lease touched for longest goes first."""

from __future__ import annotations

from prefold.eviction.policy import FixedPolicy, LeafFacts, Rank


class Lru(FixedPolicy):
    """Orders leaves by when a lease last came or went."""

    __slots__ = ()

    name = "lru"

    def rank(self, facts: LeafFacts, now: float) -> Rank:
        """Return the same whatever the time is."""
        del now
        return Rank(None, facts.last_used_at)
