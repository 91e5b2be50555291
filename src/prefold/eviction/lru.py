"""Least recently used: the leaf that no lease touched for longest goes first."""

from __future__ import annotations

from prefold.eviction.policy import LeafFacts, Rank


class Lru:
    """Scores a leaf by when a lease last came or went."""

    __slots__ = ()

    name = "lru"

    def rank(self, facts: LeafFacts, now: float) -> Rank:  # noqa: ARG002 -- the protocol's
        return Rank(facts.last_used_at)

    def note_hit(self, facts: LeafFacts, now: float) -> None:
        """Learn nothing: the time is with the leaf."""

    def note_eviction(self, facts: LeafFacts, score: float, now: float) -> None:
        """Learn nothing."""
