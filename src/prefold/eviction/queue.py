"""Eviction queue: idle leaves in the order in which they go.

Each account has a rack of shelves. Between the leaves of an account this decides, the
first thing first:

    conversations that ended | lower priority | not awaited by a queued request |
    the shelf's worth | the order on the shelf

and between accounts the last three, unless priorities count across them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from prefold.errors import InvariantError
from prefold.eviction.policy import EvictionPolicy, LeafFacts, Rank
from prefold.eviction.rack import Place, Rack
from prefold.tree.account import Account
from prefold.tree.node import Node

#: Seconds for which a queued request is taken to be about to use its prefix. It is
#: looked up again, and the time begins anew, whenever something was evicted meanwhile.
AWAITED_S = 60.0


class EvictionQueue:
    """Idle leaves of all trees of one pool. Owned by the cache; one thread.

    Attributes:
        name: Of the policy.
        learns: Whether it wants to know how runs are used.

    Invariants:
        - every evictable node has exactly one valid entry, in its account's rack
    """

    __slots__ = ("_across", "_last_ticket", "_make", "_racks", "learns", "name")

    #: Fewer entries than this are not worth compacting.
    MIN_COMPACTED = 1024

    def __init__(
        self, make: Callable[[], EvictionPolicy], *, ranks_across: bool = False
    ) -> None:
        """Make an empty queue.

        Args:
            make: Makes what ranks the leaves of one account. Each has its own, so that
                none learns from what others do, and nobody can tell from what goes first.
            ranks_across: Whether a higher priority counts against other accounts, too.
        """
        self._make = make
        pattern = make()
        self.name, self.learns = pattern.name, pattern.learns
        self._across = ranks_across
        self._racks: dict[Account, Rack] = {}
        self._last_ticket = 0

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return sum(len(rack) for rack in self._racks.values())

    def push(self, node: Node, now: float) -> None:
        """Enter a node that may have become evictable; one that cannot be is ignored.

        O(log n).
        """
        if not node.is_evictable:
            return
        rack = self._rack(node.readers.account)
        rank = rack.policy.rank(facts_of(node), now)
        is_awaited = node.wanted_until > now
        if is_awaited:
            rank = rank._replace(until=min(rank.until, node.wanted_until))
        self._last_ticket += 1
        node.ticket = self._last_ticket
        priority = -math.inf if node.is_ended else float(node.priority)
        rack.put(Place(priority, is_awaited), rank, node, self._last_ticket)

    def policy_of(self, account: Account) -> EvictionPolicy:
        """Return what ranks the leaves of an account, and learns from them."""
        return self._rack(account).policy

    def _rack(self, account: Account) -> Rack:
        rack = self._racks.get(account)
        if rack is None:
            rack = self._racks[account] = Rack(self._make())
        return rack

    def first(
        self, now: float, may_go: Callable[[Account], bool] = lambda _: True
    ) -> tuple[Node, Rank] | None:
        """Return the node to evict next and where it stands, or None if there is none.

        It stays in front until it is gone. Only accounts for which ``may_go`` are looked
        at; one that is above its maximum comes before all others. O(accounts) and,
        amortised, O(log n).
        """
        best: tuple[Node, Rank] | None = None
        best_key: tuple[float, ...] = ()
        for account, rack in self._racks.items():
            if not may_go(account):
                continue
            for node in rack.take_due(now):
                self.push(node, now)
            head = rack.head()
            while head is not None and self._is_newly_awaited(head[2].node, head[0], now):
                self.push(head[2].node, now)
                head = rack.head()
            if head is None:
                continue
            place, shelf, entry, worth = head
            key = (
                not account.num_excess,
                place.priority if self._across else 0,
                place.is_awaited,
                worth,
                entry.order,
                entry.ticket,
            )
            if best is None or key < best_key:
                best = entry.node, Rank(shelf, entry.order, entry.until)
                best_key = key
        return best

    def _is_newly_awaited(self, node: Node, place: Place, now: float) -> bool:
        """Whether a request was queued for it since it was entered."""
        return not place.is_awaited and node.wanted_until > now

    def compact(self, num_nodes: int) -> None:
        """Drop stale entries once they outnumber the ``num_nodes`` there are."""
        if len(self) > max(2 * num_nodes, self.MIN_COMPACTED):
            for rack in self._racks.values():
                rack.compact()

    def check_invariants(self, evictable: set[Node]) -> None:
        """Raise ``InvariantError`` unless exactly ``evictable`` have a valid entry."""
        valid: list[Node] = []
        for account, rack in self._racks.items():
            rack.check_invariants()
            its = rack.nodes()
            if any(node.readers.account is not account for node in its):
                raise InvariantError("a leaf is queued in another's account")
            valid += its
        if len(valid) != len(set(valid)) or set(valid) != evictable:
            raise InvariantError("the eviction queue does not hold the evictable nodes")


def facts_of(node: Node) -> LeafFacts:
    """Return what a policy may know of a node."""
    return LeafFacts(
        created_at=node.created_at,
        last_used_at=node.last_used_at,
        num_hits=node.num_hits,
        num_blocks=node.num_blocks,
        depth=node.end,
        kind=None if node.cohort is None else node.cohort.kind,
    )
