"""Eviction policy: ranks idle leaves by what is known of them.

A policy sees facts, never nodes, tokens or blocks, so it cannot break the tree.
Leaves go first whatever it says: a run is offered only when nothing hangs below it.

It sorts leaves onto *shelves*. Those of one shelf are worth the same, and go in an order
that does not change; what a shelf is worth may change with all that the policy learns. A
leaf stays on its shelf for a time that is known when it is put there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from prefold.tree.cohort import Cohort, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafFacts:
    """What a policy may know of a run of blocks.

    Attributes:
        created_at: When its oldest block was published, on the cache's clock.
        last_used_at: When a lease last came or went.
        num_hits: Leases that began by matching it.
        num_blocks: Blocks it holds.
        depth: Position after its last token: its last block is the first to go.
        kind: The policy's number for how it was used last; None if it gave none.
    """

    created_at: float
    last_used_at: float
    num_hits: int
    num_blocks: int
    depth: int
    kind: int | None = None


class Rank(NamedTuple):
    """Where a leaf stands.

    Attributes:
        shelf: Which leaves it is worth as much as.
        order: Among those, the lowest goes first.
        until: When it has to be asked for again, on the cache's clock. Of two leaves of
            one shelf, the one with the lower order has no later time.
    """

    shelf: Hashable
    order: float
    until: float = math.inf


class EvictionPolicy(Protocol):
    """Ranks idle leaves, and learns from what becomes of them. Owned by one cache."""

    @property
    def name(self) -> str:
        """The name it is registered, shown and explained under."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it wants to know how runs are used."""
        ...

    @property
    def version(self) -> int:
        """Changes whenever a shelf may be worth something else than before."""
        ...

    def rank(self, facts: LeafFacts, now: float) -> Rank:
        """Return where an idle leaf stands at this moment."""
        ...

    def worth(self, shelf: Hashable) -> float:
        """Return what a leaf of that shelf is worth: the lowest goes first."""
        ...

    def kind_of(self, request: Request, num_forks: int, gap_s: float | None) -> int:
        """Return a number for how a request used a run; asked only of who learns.

        Args:
            request: Which.
            num_forks: Requests that went on differently after the run, or inside.
            gap_s: Since the run was last used before; None for a new one.
        """
        ...

    def note_uses(self, cohorts: Sequence[Cohort], now: float) -> None:
        """Learn that a request is over, and what it used in which ways."""
        ...

    def note_reuse(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Learn that blocks of a cohort are used again."""
        ...

    def note_lost_reuse(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Learn that so many blocks are asked for again that were evicted."""
        ...

    def note_eviction(
        self, rank: Rank, cohort: Cohort | None, num_blocks: int, now: float
    ) -> None:
        """Learn that the last blocks of a leaf are about to go, and where it stood."""
        ...

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if what was learned does not add up."""
        ...


class FixedPolicy:
    """What policies have in common that rank by rules and learn nothing from cohorts."""

    __slots__ = ()

    learns = False
    version = 0

    def worth(self, shelf: Hashable) -> float:
        """Return the same for all: their order says everything."""
        del shelf
        return 0.0

    def kind_of(self, request: Request, num_forks: int, gap_s: float | None) -> int:
        """Tell no ways of being used apart."""
        del request, num_forks, gap_s
        return 0

    def note_uses(self, cohorts: Sequence[Cohort], now: float) -> None:
        """Learn nothing."""

    def note_reuse(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Learn nothing."""

    def note_lost_reuse(self, cohort: Cohort, num_blocks: int, now: float) -> None:
        """Learn nothing."""

    def note_eviction(
        self, rank: Rank, cohort: Cohort | None, num_blocks: int, now: float
    ) -> None:
        """Learn nothing."""

    def check_invariants(self) -> None:
        """Check nothing: there is nothing that could be wrong."""
