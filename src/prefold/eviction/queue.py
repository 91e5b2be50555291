"""Eviction queue: idle leaves in the order in which they go.

One binary heap an account, with lazy deletion: an entry counts only while its ticket is
the node's newest and the node can still be evicted. Inside an account the order is

    conversations that ended | lower priority | not awaited by a queued request | score

and between accounts by the last two, unless priorities count across them. Entries whose
rank holds for some time only stand in a second heap by that time, and are ranked anew when
it comes. O(log n) a push and, amortised, a pop; O(accounts) a choice.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prefold.errors import InvariantError
from prefold.eviction.policy import EvictionPolicy, LeafFacts
from prefold.tree.account import Account
from prefold.tree.node import Node

#: Seconds for which a queued request is taken to be about to use its prefix. It is
#: looked up again, and the time begins anew, whenever something was evicted meanwhile.
AWAITED_S = 60.0


class _Entry(NamedTuple):
    """Compared from left to right; the ticket is unique."""

    priority: float
    is_awaited: bool
    score: float
    ticket: int
    node: Node


class EvictionQueue:
    """Idle leaves of all trees of one pool. Owned by the cache; one thread.

    Invariants:
        - every evictable node has exactly one valid entry, in its account's heap
    """

    __slots__ = ("_across", "_heaps", "_last_ticket", "_reviews", "policy")

    #: A heap smaller than this is not worth compacting.
    MIN_COMPACTED = 1024

    def __init__(self, policy: EvictionPolicy, *, ranks_across: bool = False) -> None:
        """Make an empty queue.

        Args:
            policy: What scores leaves.
            ranks_across: Whether a higher priority counts against other accounts, too.
        """
        self.policy = policy
        self._across = ranks_across
        self._heaps: dict[Account, list[_Entry]] = {}
        self._reviews: list[tuple[float, int, Node]] = []
        self._last_ticket = 0

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return sum(len(heap) for heap in self._heaps.values())

    def push(self, node: Node, now: float) -> None:
        """Enter a node that may have become evictable; one that cannot be is ignored."""
        if not node.is_evictable:
            return
        score, until = self.policy.rank(facts_of(node), now)
        is_awaited = node.wanted_until > now
        if is_awaited:
            until = min(until, node.wanted_until)
        self._last_ticket += 1
        node.ticket = self._last_ticket
        entry = _Entry(
            -math.inf if node.is_ended else node.priority,
            is_awaited,
            score,
            self._last_ticket,
            node,
        )
        heapq.heappush(self._heaps.setdefault(node.readers.account, []), entry)
        if until < math.inf:
            heapq.heappush(self._reviews, (until, self._last_ticket, node))

    def first(
        self, now: float, may_go: Callable[[Account], bool] = lambda _: True
    ) -> tuple[Node, float] | None:
        """Return the node to evict next with its score, or None if there is none.

        It stays in front until it is gone. Only accounts for which ``may_go`` are looked
        at; one that is above its maximum comes before all others.
        """
        self._review(now)
        best: _Entry | None = None
        best_key: tuple[float, ...] = ()
        for account in self._heaps:
            if not may_go(account):
                continue
            entry = self._head(account, now)
            if entry is None:
                continue
            key = (
                not account.num_excess,
                entry.priority if self._across else 0,
                entry.is_awaited,
                entry.score,
                entry.ticket,
            )
            if best is None or key < best_key:
                best, best_key = entry, key
        return None if best is None else (best.node, best.score)

    def _head(self, account: Account, now: float) -> _Entry | None:
        heap = self._heaps[account]
        while heap:
            entry = heap[0]
            if not _is_valid(entry.ticket, entry.node):
                heapq.heappop(heap)
            elif entry.node.wanted_until > now and not entry.is_awaited:
                # A request was queued for it since it was entered.
                heapq.heappop(heap)
                self.push(entry.node, now)
            else:
                return entry
        return None

    def _review(self, now: float) -> None:
        while self._reviews and self._reviews[0][0] <= now:
            _, ticket, node = heapq.heappop(self._reviews)
            if _is_valid(ticket, node):
                self.push(node, now)

    def compact(self, num_nodes: int) -> None:
        """Drop stale entries once they outnumber the ``num_nodes`` there are."""
        limit = max(2 * num_nodes, self.MIN_COMPACTED)
        if len(self) > limit:
            for heap in self._heaps.values():
                heap[:] = [entry for entry in heap if _is_valid(entry.ticket, entry.node)]
                heapq.heapify(heap)
        if len(self._reviews) > limit:
            self._reviews = [each for each in self._reviews if _is_valid(*each[1:])]
            heapq.heapify(self._reviews)

    def check_invariants(self, evictable: set[Node]) -> None:
        """Raise ``InvariantError`` unless exactly ``evictable`` have a valid entry."""
        valid = list(self._valid())
        if len(valid) != len(set(valid)) or set(valid) != evictable:
            raise InvariantError("the eviction queue does not hold the evictable nodes")

    def _valid(self) -> Iterator[Node]:
        for account, heap in self._heaps.items():
            for entry in heap:
                if _is_valid(entry.ticket, entry.node):
                    if entry.node.readers.account is not account:
                        raise InvariantError("a leaf is queued in another's account")
                    yield entry.node


def facts_of(node: Node) -> LeafFacts:
    """Return what a policy may know of a node."""
    return LeafFacts(
        created_at=node.created_at,
        last_used_at=node.last_used_at,
        num_hits=node.num_hits,
        num_blocks=node.num_blocks,
        depth_tokens=node.start,
        turn=node.turn,
        num_new_tokens=node.num_new_tokens,
    )


def _is_valid(ticket: int, node: Node) -> bool:
    return node.ticket == ticket and node.is_evictable
