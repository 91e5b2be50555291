"""Eviction queue: idle leaves in order of their policy's score.

A binary heap with lazy deletion: an entry counts only while its ticket is the node's
newest and the node can still be evicted. O(log n) a push and, amortised, a pop.
"""

from __future__ import annotations

import heapq

from prefold.errors import InvariantError
from prefold.eviction.policy import EvictionPolicy, LeafFacts
from prefold.tree.node import Node


class EvictionQueue:
    """Idle leaves of all trees of one pool. Owned by the cache; one thread.

    Invariants:
        - every evictable node has exactly one valid entry
    """

    __slots__ = ("_heap", "_last_ticket", "policy")

    #: A heap smaller than this is not worth compacting.
    MIN_COMPACTED = 1024

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._heap: list[tuple[float, int, Node]] = []
        self._last_ticket = 0

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self._heap)

    def push(self, node: Node) -> None:
        """Enter a node that may have become evictable; one that cannot be is ignored."""
        if not node.is_evictable:
            return
        score = self.policy.score(
            LeafFacts(
                created_at=node.created_at,
                last_used_at=node.last_used_at,
                num_hits=node.num_hits,
                num_blocks=node.num_blocks,
                depth_tokens=node.start,
            )
        )
        self._last_ticket += 1
        node.ticket = self._last_ticket
        heapq.heappush(self._heap, (score, self._last_ticket, node))

    def first(self) -> Node | None:
        """Return the node to evict next, or None; it stays in front until it is gone."""
        while self._heap:
            _, ticket, node = self._heap[0]
            if _is_valid(ticket, node):
                return node
            heapq.heappop(self._heap)
        return None

    def compact(self, num_nodes: int) -> None:
        """Drop stale entries once they outnumber the ``num_nodes`` there are."""
        if len(self._heap) > max(2 * num_nodes, self.MIN_COMPACTED):
            self._heap = [entry for entry in self._heap if _is_valid(entry[1], entry[2])]
            heapq.heapify(self._heap)

    def check_invariants(self, evictable: set[Node]) -> None:
        """Raise ``InvariantError`` unless exactly ``evictable`` have a valid entry."""
        valid = [node for _, ticket, node in self._heap if _is_valid(ticket, node)]
        if len(valid) != len(set(valid)) or set(valid) != evictable:
            raise InvariantError("the eviction queue does not hold the evictable nodes")


def _is_valid(ticket: int, node: Node) -> bool:
    return node.ticket == ticket and node.is_evictable
