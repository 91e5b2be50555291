"""Expiry: idle nodes whose time is over.

Every walk compares the time, so an expired node is not found from its last moment on.
Unlinking it, so that its blocks are the first to go, is housekeeping.

A request that uses a node uses all above it, so nothing below outlives it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection

from prefold.errors import InvariantError
from prefold.tree.node import Node


class Expiries:
    """Idle nodes that have an end, soonest first. Owned by one tree.

    A heap with lazy deletion, in which a node stands once at most: if it was used
    meanwhile, it is entered anew when its first time comes. O(log n) each.
    """

    __slots__ = ("_due", "_num_entered", "_prune_at")

    #: A heap shorter than this is not worth pruning.
    MIN_PRUNED = 64

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Node]] = []
        self._num_entered = 0
        self._prune_at = self.MIN_PRUNED

    def __bool__(self) -> bool:
        return bool(self._due)

    def watch(self, node: Node) -> None:
        """Enter an idle node, if it has an end and does not stand here already."""
        if node.count == 0 and node.expires_at < math.inf and not node.is_watched:
            node.is_watched = True
            self._num_entered += 1
            heapq.heappush(self._due, (node.expires_at, self._num_entered, node))
            if len(self._due) > self._prune_at:
                self._due = [entry for entry in self._due if not entry[2].is_freed]
                heapq.heapify(self._due)
                self._prune_at = 2 * len(self._due) + self.MIN_PRUNED

    def take(self, now: float) -> Node | None:
        """Return a node whose time is over and forget it; None if there is none."""
        while self._due and self._due[0][0] <= now:
            node = heapq.heappop(self._due)[2]
            node.is_watched = False
            if node.is_freed or not node.is_attached:
                continue
            if node.is_expired(now):
                return node
            self.watch(node)
        return None

    def check_invariants(self, nodes: Collection[Node]) -> None:
        """Raise ``InvariantError`` unless exactly the watched of ``nodes`` stand here."""
        entered = [node for _, _, node in self._due]
        if len(entered) != len(set(entered)) or not all(n.is_watched for n in entered):
            raise InvariantError("a node is entered twice for its expiry, or not watched")
        if not {node for node in nodes if node.is_watched} <= set(entered):
            raise InvariantError("a node is watched for its expiry and not entered")
