"""Room: where the blocks come from when a sequence needs some.

In this order: free blocks, blocks of dead nodes, idle blocks by the eviction policy,
and at last the blocks that only a pending copy pins.
"""

from __future__ import annotations

from collections.abc import Collection

from prefold.blocks.pool import BlockPool
from prefold.blocks.table import BlockIds
from prefold.cache.lease import Lease
from prefold.cache.trees import Trees
from prefold.errors import InvariantError, OutOfBlocksError
from prefold.eviction.queue import EvictionQueue
from prefold.eviction.registry import make_policy
from prefold.tree.prefix_tree import PrefixTree


class Room:
    """Makes room in the pool, and knows the pending copies. Owned by the cache."""

    __slots__ = (
        "_copying",
        "_pool",
        "_trees",
        "num_evicted_blocks",
        "num_evictions",
        "queue",
    )

    def __init__(self, pool: BlockPool, trees: Trees, policy: str) -> None:
        self._pool = pool
        self._trees = trees
        self.queue = EvictionQueue(make_policy(policy))
        # A dict for its order, so that equal histories evict equal blocks.
        self._copying: dict[Lease, None] = {}
        self.num_evictions = 0
        self.num_evicted_blocks = 0

    def take(self, num_blocks: int) -> BlockIds:
        """Return that many private blocks.

        Raises:
            OutOfBlocksError: There are not as many; only pending copies may be gone.
        """
        available = self._num_available()
        if num_blocks > available and self._copying:
            for lease in list(self._copying):
                self.drop_copy(lease)
            available = self._num_available()
        if num_blocks > available:
            raise OutOfBlocksError(num_blocks, available)
        missing = num_blocks - self._pool.num_free
        if missing > 0:
            self._trees.bury_too_old()
        for tree in self._trees.all():
            if missing > 0 and tree.dead:
                missing -= tree.sweep(missing)
        if missing > 0:
            self._evict(missing)
        return self._pool.allocate(num_blocks)

    def sweep(self) -> None:
        """Free all dead blocks that no lease uses. O(nodes freed)."""
        self._trees.bury_too_old()
        for tree in self._trees.all():
            tree.sweep(self._pool.num_blocks)

    def _num_available(self) -> int:
        return self._pool.num_free + self._pool.num_idle

    def _evict(self, num_blocks: int) -> None:
        for tree in self._trees.all():
            self.enter_leaves(tree)
        goal = self._pool.num_free + num_blocks
        while self._pool.num_free < goal:
            leaf = self.queue.first()
            if leaf is None:
                raise InvariantError("idle blocks are left but none can be evicted")
            before = self._pool.num_free
            tree = self._trees.holding(leaf.readers)
            tree.trim(leaf, goal - before, self.queue.policy.name)
            self.enter_leaves(tree)
            self.num_evictions += 1
            self.num_evicted_blocks += self._pool.num_free - before

    def enter_leaves(self, tree: PrefixTree) -> None:
        """Put what became idle in a tree into the eviction queue."""
        leaves = tree.take_idle_leaves()
        for leaf in leaves:
            self.queue.push(leaf)
        if leaves:
            self.queue.compact(sum(each.num_nodes for each in self._trees.all()))

    # -- pending copies ------------------------------------------------------------

    def watch_copy(self, lease: Lease) -> None:
        """Remember that a lease has a pending copy, which may have to be dropped."""
        if lease.copy_source is not None:
            self._copying[lease] = None

    def unpin_source(self, lease: Lease) -> None:
        """The copy was carried out."""
        source = lease.copy_source
        if source is None:
            raise InvariantError("there is no copy source to unpin")
        lease.copy_source = None
        self._copying.pop(lease, None)
        tree, parent = lease.tree, source.parent
        tree.unpin(source)
        tree.merge(source)
        if parent is not None:
            tree.merge(parent)
        self.enter_leaves(tree)

    def drop_copy(self, lease: Lease) -> None:
        """Give a pending copy up: its tokens will be computed instead."""
        lease.num_copy_tokens = 0
        self.unpin_source(lease)

    def check_invariants(self, leases: Collection[Lease]) -> None:
        """Raise ``InvariantError`` unless exactly the pending copies are watched."""
        pending = {lease for lease in leases if lease.copy_source is not None}
        if self._copying.keys() != pending:
            raise InvariantError("the pending copies of leases and of the room differ")
