"""Rack: the idle leaves of one account on their shelves, and which shelf is next.

A shelf is a binary heap by order; the shelves' heads stand in a heap by what they are
worth, which is made anew when the policy has learned something. Both are lazy: an entry
counts only while its ticket is the node's newest and the node can be evicted, and a shelf
only while its head is the one that it was entered with.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import NamedTuple

from prefold.errors import InvariantError
from prefold.eviction.policy import EvictionPolicy, Rank
from prefold.tree.node import Node

#: Leaves that change their shelf in one call, at most; what is late keeps its place until
#: then, so that no single eviction pays for a great many.
MAX_DUE = 16


class Place(NamedTuple):
    """What counts before a shelf's worth."""

    priority: float
    is_awaited: bool


class Entry(NamedTuple):
    """A leaf on a shelf; compared by order, then by ticket, which is unique."""

    order: float
    ticket: int
    node: Node
    until: float

    @property
    def is_valid(self) -> bool:
        return self.node.ticket == self.ticket and self.node.is_evictable


_Key = tuple[Place, Hashable]


class Rack:
    """The shelves of one account. Owned by the eviction queue.

    Attributes:
        policy: What ranks its leaves.

    Invariants:
        - a shelf that holds a valid entry stands in the heap with its head, or better
    """

    __slots__ = ("_due", "_heads", "_shelves", "_version", "policy")

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._version = policy.version
        self._shelves: dict[_Key, list[Entry]] = {}
        # By place, worth, order and ticket of the head.
        self._heads: list[tuple[Place, float, float, int, _Key]] = []
        # When a shelf's head has to be ranked anew; it is the first of its shelf.
        self._due: list[tuple[float, int, _Key]] = []

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves.values())

    def put(self, place: Place, rank: Rank, node: Node, ticket: int) -> None:
        """Enter a leaf. O(log n)."""
        key = (place, rank.shelf)
        shelf = self._shelves.setdefault(key, [])
        heapq.heappush(shelf, Entry(rank.order, ticket, node, rank.until))
        if shelf[0].ticket == ticket:
            self._enter(key, shelf[0])

    def head(self) -> tuple[Place, Hashable, Entry, float] | None:
        """Return what goes next: its place, shelf, entry and worth; None if nothing is."""
        if self._version != self.policy.version:
            self._rank_anew()
        while self._heads:
            first = self._heads[0]
            _, worth, _, ticket, key = first
            entry = self._clean(key)
            if self._heads[0] is not first:
                # What came forward on that shelf is worth less than was known before.
                continue
            if entry is not None and entry.ticket == ticket:
                return *key, entry, worth
            heapq.heappop(self._heads)
        return None

    def take_due(self, now: float) -> list[Node]:
        """Take out leaves whose rank holds no longer; some, if there are many."""
        taken: list[Node] = []
        while self._due and self._due[0][0] <= now and len(taken) < MAX_DUE:
            _, ticket, key = heapq.heappop(self._due)
            entry = self._clean(key)
            if entry is not None and entry.ticket == ticket:
                taken.append(entry.node)
                # Its next push makes the entry stale; the one behind it comes forward.
                entry.node.ticket = 0
                self._clean(key)
        return taken

    def _clean(self, key: _Key) -> Entry | None:
        """Drop stale entries from a shelf's front and return its head.

        A head that came forward is entered, so whoever pops one leaves the next behind.
        """
        shelf = self._shelves.get(key)
        if shelf is None:
            return None
        has_changed = False
        while shelf and not shelf[0].is_valid:
            heapq.heappop(shelf)
            has_changed = True
        if not shelf:
            del self._shelves[key]
            return None
        if has_changed:
            self._enter(key, shelf[0])
        return shelf[0]

    def _enter(self, key: _Key, head: Entry) -> None:
        worth = self.policy.worth(key[1])
        heapq.heappush(self._heads, (key[0], worth, head.order, head.ticket, key))
        if head.until < math.inf:
            heapq.heappush(self._due, (head.until, head.ticket, key))

    def _rank_anew(self) -> None:
        self._version = self.policy.version
        self._heads = []
        self._due = []
        for key in list(self._shelves):
            head = self._clean(key)
            if head is not None:
                self._enter(key, head)

    def compact(self) -> None:
        """Drop all stale entries. O(n)."""
        for key, shelf in list(self._shelves.items()):
            shelf[:] = [entry for entry in shelf if entry.is_valid]
            heapq.heapify(shelf)
            if not shelf:
                del self._shelves[key]
        self._rank_anew()

    def nodes(self) -> list[Node]:
        """Return the nodes with a valid entry. O(n)."""
        shelves = self._shelves.values()
        return [entry.node for shelf in shelves for entry in shelf if entry.is_valid]

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a leaf could never come forward. O(n)."""
        self.policy.check_invariants()
        entered = {(ticket, key) for _, _, _, ticket, key in self._heads}
        for key, shelf in self._shelves.items():
            if shelf and (shelf[0].ticket, key) not in entered:
                raise InvariantError("a shelf's head does not stand where it is looked for")
