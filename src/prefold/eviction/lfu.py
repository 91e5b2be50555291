"""Least frequently used, with ageing: many hits long ago do not protect for ever.

Dynamic ageing (Arlitt, Cherkasova, Dilley, Friedrich and Jin, "Evaluating content
management techniques for web proxy caches", 2000): a leaf's place is its number of hits
plus the place of what was evicted last when the leaf became idle. So places never have to
be changed, and what is not used is overtaken as evictions go on.
"""

from __future__ import annotations

from prefold.eviction.policy import FixedPolicy, LeafFacts, Rank
from prefold.tree.cohort import Cohort


class Lfu(FixedPolicy):
    """Orders leaves by their hits and by when, in evictions, they were last used."""

    __slots__ = ("_age",)

    name = "lfu"

    def __init__(self) -> None:
        self._age = 0.0

    def rank(self, facts: LeafFacts, now: float) -> Rank:
        """Return the same for equal hits until something is evicted."""
        del now
        return Rank(None, self._age + facts.num_hits)

    def note_eviction(
        self, rank: Rank, cohort: Cohort | None, num_blocks: int, now: float
    ) -> None:
        """Let what becomes idle from now on stand behind what goes."""
        del cohort, num_blocks, now
        self._age = max(self._age, rank.order)
