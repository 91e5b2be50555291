"""Room: where the blocks come from when a sequence needs some.

In this order: free blocks, blocks of dead nodes, idle blocks by the eviction policy, as
far as the sequence's account may have them, and at last the blocks that only a pending
copy pins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from prefold.blocks.pool import BlockPool
from prefold.blocks.table import BlockIds
from prefold.cache.lease import Lease
from prefold.cache.survey import Lookup
from prefold.cache.trees import Trees
from prefold.errors import InvariantError, OutOfBlocksError
from prefold.eviction.policy import Rank
from prefold.eviction.queue import AWAITED_S, EvictionQueue
from prefold.eviction.quota import Quotas
from prefold.identity.domain import Domain
from prefold.tree.account import Account
from prefold.tree.loss import Pressure
from prefold.tree.node import Node
from prefold.tree.path import await_path
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.trimming import trim


class Room:
    """Makes room in the pool, and knows the pending copies. Owned by the cache.

    Attributes:
        num_evictions: Times a leaf's tail was evicted.
        num_evicted_blocks: Blocks that were.
    """

    __slots__ = (
        "_clock",
        "_copying",
        "_pool",
        "_quotas",
        "_trees",
        "num_evicted_blocks",
        "num_evictions",
        "queue",
    )

    def __init__(
        self,
        pool: BlockPool,
        trees: Trees,
        quotas: Quotas,
        queue: EvictionQueue,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._trees = trees
        self._quotas = quotas
        self._clock = clock
        self.queue = queue
        # A dict for its order, so that equal histories evict equal blocks.
        self._copying: dict[Lease, None] = {}
        self.num_evictions = 0
        self.num_evicted_blocks = 0

    @property
    def quotas(self) -> Quotas:
        """What is whose, to be read only."""
        return self._quotas

    @property
    def trees(self) -> Sequence[PrefixTree]:
        """The trees, to be read only."""
        return self._trees.all()

    def is_dead(self, node: Node) -> bool:
        """Whether nobody can find a node any more."""
        return self._trees.holding(node.readers).audiences.is_dead(node)

    def num_available(self, domain: Domain) -> int:
        """Return how many blocks a request of ``domain`` could have at this moment."""
        return self._num_available(self._quotas.of_domain(domain))

    def capacity(self, domain: Domain, num_pinned: int) -> int:
        """Return how many blocks a request of ``domain`` gets, however long it waits.

        Args:
            domain: Whose.
            num_pinned: Blocks that are pinned at this moment.
        """
        return self._pool.num_blocks - self._quotas.num_fixed(domain, num_pinned)

    def _num_available(self, account: Account) -> int:
        idle = self._pool.num_idle - self._quotas.num_withheld(account)
        return self._pool.num_free + idle

    def take(self, num_blocks: int, taker: Lease) -> BlockIds:
        """Return that many private blocks, for the sequence of a lease.

        Raises:
            OutOfBlocksError: There are not as many; only pending copies may be gone.
        """
        account = taker.account
        if num_blocks > self._num_available(account) and self._copying:
            for lease in list(self._copying):
                self.drop_copy(lease)
        if num_blocks > self._num_available(account):
            # What died in an account counts there until it is swept.
            self.sweep()
        available = self._num_available(account)
        if num_blocks > available:
            raise OutOfBlocksError(num_blocks, available)
        missing = num_blocks - self._pool.num_free
        if missing > 0:
            self._trees.bury_too_old()
        for tree in self._trees.all():
            if missing > 0 and tree.dead:
                missing -= tree.sweep(missing)
        if missing > 0:
            self._evict(missing, taker)
        return self._pool.allocate(num_blocks)

    def sweep(self) -> None:
        """Free all dead blocks that no lease uses. O(nodes freed)."""
        self._trees.bury_too_old()
        for tree in self._trees.all():
            tree.sweep(self._pool.num_blocks)

    def _evict(self, num_blocks: int, taker: Lease) -> None:
        its = taker.account
        for tree in self._trees.all():
            self.enter_leaves(tree)
        goal = self._pool.num_free + num_blocks
        while (missing := goal - self._pool.num_free) > 0:
            first = self.queue.first(
                self._clock(), lambda account: self._quotas.may_take(its, account)
            )
            if first is None:
                raise InvariantError("idle blocks are left but none can be evicted")
            leaf, rank = first
            most = self._quotas.most_of(its, leaf.readers.account)
            pressure = self._pressure_of(taker, leaf)
            self._evict_tail(leaf, min(missing, most), rank, pressure)

    def _pressure_of(self, taker: Lease, leaf: Node) -> Pressure:
        audience, account = leaf.readers.audience, leaf.readers.account
        if self._quotas.is_common(account):
            # Those without a share have nothing in common but that.
            is_own = audience.domain.path == taker.audiences[-1].domain.path
        else:
            is_own = account is taker.account
        return Pressure.OWN if is_own else Pressure.POOL

    def _evict_tail(
        self, leaf: Node, num_blocks: int, rank: Rank, pressure: Pressure
    ) -> None:
        now, before = self._clock(), self._pool.num_free
        tree = self._trees.holding(leaf.readers)
        policy = self.queue.policy_of(leaf.readers.account)
        num_blocks = min(num_blocks, leaf.num_blocks)
        policy.note_eviction(rank, leaf.cohort, num_blocks, now)
        trim(tree, leaf, num_blocks, policy.name, now, pressure)
        self.enter_leaves(tree)
        self.num_evictions += 1
        self.num_evicted_blocks += self._pool.num_free - before

    def enter_leaves(self, tree: PrefixTree) -> None:
        """Put what became idle in a tree into the eviction queue."""
        leaves = tree.take_idle_leaves()
        if not leaves:
            return
        now = self._clock()
        for leaf in leaves:
            self.queue.push(leaf, now)
        self.queue.compact(sum(each.num_nodes for each in self._trees.all()))

    def settle(self) -> None:
        """Enter what became idle, and bring accounts back to their maxima.

        O(nodes that became idle, and blocks above a maximum).
        """
        for tree in self._trees.all():
            self.enter_leaves(tree)
        for account in self._quotas.limited():
            if account.num_excess:
                self._cut_down(account)

    def _cut_down(self, account: Account) -> None:
        self.sweep()
        while account.num_excess:
            first = self.queue.first(self._clock(), lambda each: each is account)
            if first is None:
                raise InvariantError("an account is above its maximum for good")
            self._evict_tail(first[0], account.num_excess, first[1], Pressure.SHARE)

    def num_idle_on(self, found: Lookup) -> int:
        """Return how many blocks of a match would not be idle any more. O(nodes)."""
        at, num_idle = found.end, 0
        if at is None or at.is_freed:
            return 0
        position = found.num_matched_tokens
        while at.parent is not None:
            if at.count == 0:
                num_idle += (position - at.start) // self._trees.block_size
            position, at = at.start, at.parent
        return num_idle

    def expect(self, found: Lookup) -> None:
        """Note that a request is queued which will use what was found for it.

        For a while that is evicted after what nobody waits for, but not kept at all cost.
        O(depth in nodes).
        """
        if found.end is not None:
            await_path(found.end, self._clock() + AWAITED_S)

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
        tree.unpin(source, lease.retention)
        tree.merge(source)
        if parent is not None:
            tree.merge(parent)
        self.settle()

    def drop_copy(self, lease: Lease) -> None:
        """Give a pending copy up: its tokens will be computed instead."""
        lease.num_copy_tokens = 0
        self.unpin_source(lease)

    def check_invariants(self, leases: Collection[Lease], nodes: list[Node]) -> None:
        """Raise ``InvariantError`` unless pending copies and accounts add up. O(nodes)."""
        self._quotas.check_invariants(nodes)
        pending = {lease for lease in leases if lease.copy_source is not None}
        if self._copying.keys() != pending:
            raise InvariantError("the pending copies of leases and of the room differ")
