"""Pins: what no eviction takes, because an approval or an operator says so.

A pin is one path count more, held by nobody's lease, on every run from its end to the
root. So eviction, split and merge, which heed counts, need no further rule. All pins
together have one budget, so that requests always find room beside them.

An operator's pin shares nothing and keeps nothing alive that was dropped: it ends with the
run that it ends at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from prefold.cache.trees import Trees
from prefold.errors import CapacityError, InvariantError
from prefold.eviction.quota import Quotas
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.retention import MAX_PRIORITY, Retention

#: Leaves time to live and priority of a run as they are.
_AS_IT_IS = Retention(ttl_s=math.ulp(0.0), priority=-MAX_PRIORITY)


class Pins:
    """All pins of one cache. Owned by its approved prefixes; one thread.

    Attributes:
        num_blocks: Blocks that are pinned.

    Invariants:
        - every pin is one count on its path
        - an operator's pin ends at a run that can be found, once a run at most
    """

    __slots__ = ("_by_operator", "_held", "_num_blocks", "_quotas", "_trees", "num_blocks")

    def __init__(self, num_blocks: int, quotas: Quotas, trees: Trees) -> None:
        self._num_blocks = num_blocks
        self._quotas = quotas
        self._trees = trees
        #: How many approvals' pins end at a node.
        self._held: Counter[Node] = Counter()
        self._by_operator: set[Node] = set()
        self.num_blocks = 0

    def ends(self, tree: PrefixTree) -> list[Node]:
        """Return the nodes of a tree that pins end at, each as often as it is pinned."""
        its = [*self._held.elements(), *self._by_operator]
        return [node for node in its if self._trees.holding(node.readers) is tree]

    def counts(self) -> Counter[Node]:
        """Return how many pins every pinned node is on. O(pins, times depth in nodes)."""
        ends = [*self._held.elements(), *self._by_operator]
        return Counter(node for end in ends for node in path_to(end))

    # -- approvals -----------------------------------------------------------------

    def hold(self, node: Node) -> None:
        """Pin for an approval; ``check_room`` was asked before."""
        self._trees.holding(node.readers).pin(node)
        self._held[node] += 1
        self._count()

    def let_go(self, nodes: Iterable[Node]) -> None:
        """Take approvals' pins away again."""
        for node in nodes:
            self._held[node] -= 1
            if not self._held[node]:
                del self._held[node]
            self._trees.holding(node.readers).unpin(node)
        self._count()

    def check_room(self, end: Node, num_kept: int, *, is_pinned: bool) -> None:
        """Refuse what would leave too little room.

        Args:
            end: Where the path ends that is about to be approved or pinned.
            num_kept: Blocks that an open request needs up to.
            is_pinned: Whether it is about to be pinned.

        Raises:
            CapacityError: Too many blocks would be pinned, or fewer than ``num_kept``
                left over.
        """
        quotas, num_blocks = self._quotas, self._num_blocks
        pinned = set(self.counts())
        if is_pinned:
            pinned |= set(path_to(end))
        num_pinned = _total(pinned)
        if is_pinned and num_pinned > quotas.max_pinned:
            raise CapacityError(
                f"{num_pinned} of {num_blocks} blocks would be pinned, and at most "
                f"{quotas.max_pinned} may (max_pinned, and what is reserved); unpin "
                "something, withdraw a pinned approval, approve without pinning, or raise "
                "cache_memory (or cache_blocks)"
            )
        # What died counts as approved until it is swept.
        for tree in self._trees.all():
            tree.sweep(num_blocks)
        # What somebody reserved may hang below what is approved, which then has to stay.
        fixed = quotas.num_reserved
        fixed += quotas.num_approved + _total(_own(pinned)) if fixed else num_pinned
        if fixed > num_blocks - num_kept:
            raise CapacityError(
                f"{fixed} of {num_blocks} blocks would be pinned, or approved and "
                f"reserved, and a request that is open needs up to {num_kept}; try again "
                "when it has ended"
            )

    # -- operators -----------------------------------------------------------------

    def pin(self, node: Node, num_kept: int) -> None:
        """Pin all from the beginning to a node's end; nothing new if it is already.

        Args:
            node: One that can be found, of whole blocks.
            num_kept: Blocks that an open request needs up to.

        Raises:
            CapacityError: As ``check_room``.
        """
        if node in self._by_operator:
            return
        self.check_room(node, num_kept, is_pinned=True)
        self._trees.holding(node.readers).pin(node, _AS_IT_IS)
        self._by_operator.add(node)
        self._count()

    def unpin(self, node: Node) -> bool:
        """Take an operator's pin away; return whether there was one.

        What comes idle with it may be above its account's maximum until the room settles.
        """
        if node not in self._by_operator:
            return False
        self._by_operator.remove(node)
        self._trees.holding(node.readers).unpin(node, _AS_IT_IS)
        self._count()
        return True

    def is_by_operator(self, node: Node) -> bool:
        """Whether an operator's pin ends at a node."""
        return node in self._by_operator

    def end_orphans(self) -> int:
        """End operators' pins of what cannot be found any more.

        Returns how many blocks of it nothing else uses. O(pins, times depth in nodes).
        """
        gone = [node for node in self._by_operator if self._is_orphan(node)]
        lost: dict[Node, None] = {}
        for node in gone:
            audiences = self._trees.holding(node.readers).audiences
            # An approved run that a pin of one domain's own lies below may have been lost
            # before; it has not been lost again.
            lost |= dict.fromkeys(
                it
                for it in path_to(node)
                if audiences.is_doomed(it) or (node.is_unmarked and it.is_unmarked)
            )
        for node in gone:
            self.unpin(node)
        return sum(it.num_blocks for it in lost if it.count == 0)

    def _is_orphan(self, node: Node) -> bool:
        audiences = self._trees.holding(node.readers).audiences
        return node.is_unmarked or audiences.is_doomed(node)

    # -- checks --------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless pins are where they should be. O(pins)."""
        if any(node.is_freed or node.is_partial for node in self._by_operator):
            raise InvariantError("a pin ends at a node that is gone, or is no run")
        if any(self._is_orphan(node) for node in self._by_operator):
            raise InvariantError("a pin outlived what it pins")
        if any(count < 1 for count in self._held.values()):
            raise InvariantError("a node was let go more often than held")
        pinned = self.counts()
        if self.num_blocks != _total(pinned):
            raise InvariantError("the count of pinned blocks is wrong")
        if self._quotas.num_pinned_own != _total(_own(pinned)):
            raise InvariantError("the count of blocks pinned for one domain is wrong")

    def _count(self) -> None:
        pinned = self.counts()
        self.num_blocks = _total(pinned)
        self._quotas.num_pinned_own = _total(_own(pinned))


def _own(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if not node.readers.is_approved]


def _total(nodes: Iterable[Node]) -> int:
    return sum(node.num_blocks for node in nodes)
