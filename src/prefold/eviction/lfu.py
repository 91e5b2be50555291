"""Least frequently used, with ageing: many hits long ago do not protect for ever.

Dynamic ageing (Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating content
management techniques for web proxy caches", 2000): a leaf's score is its number of hits
plus the score of what was evicted last when the leaf became idle. So scores never have to
be changed, and what is not used is overtaken as evictions go on.
"""

from __future__ import annotations

from prefold.eviction.policy import LeafFacts, Rank


class Lfu:
    """Scores a leaf by its hits and by when, in evictions, it was last used."""

    __slots__ = ("_age",)

    name = "lfu"

    def __init__(self) -> None:
        self._age = 0.0

    def rank(self, facts: LeafFacts, now: float) -> Rank:  # noqa: ARG002 -- the protocol's
        return Rank(self._age + facts.num_hits)

    def note_hit(self, facts: LeafFacts, now: float) -> None:
        """Learn nothing: the count is with the leaf."""

    def note_eviction(
        self,
        facts: LeafFacts,  # noqa: ARG002 -- the protocol's
        score: float,
        now: float,  # noqa: ARG002 -- the protocol's
    ) -> None:
        self._age = max(self._age, score)
