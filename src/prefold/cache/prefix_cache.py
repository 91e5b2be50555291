"""Prefix cache: the one door to blocks, trees, leases and eviction.

In the order a sequence uses it::

    lease = cache.acquire(fingerprint, domain, tokens)   what is there, pinned
    cache.reserve(lease, n)                              room for n positions in all
    ...copy, compute...
    cache.copied(lease)                                  the pending copy is done
    cache.commit(lease, tokens, computed)                full blocks become findable
    cache.release(lease, tokens, computed)               whatever the outcome

``tokens`` is the sequence's own int64 buffer, longer by at most the sampled token without
KV; ``computed`` says how many positions have KV.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from prefold.blocks.pool import BlockCounts, BlockPool
from prefold.blocks.table import TokenIds, num_blocks_for
from prefold.cache.access import READ_WRITE, Access
from prefold.cache.accounting import CacheSnapshot, take_snapshot
from prefold.cache.approval import Approval, ApprovalId, ApprovalTerms
from prefold.cache.approved import ApprovedPrefixes
from prefold.cache.browse import TreeBrowser
from prefold.cache.frontier import Frontiers
from prefold.cache.invalidation import Invalidation
from prefold.cache.invariants import check_cache
from prefold.cache.keys import KeyIndex
from prefold.cache.lease import Fork, Lease, LeaseTerms
from prefold.cache.listing import CacheListing, ListingBounds
from prefold.cache.paths import LeasePaths
from prefold.cache.room import Room
from prefold.cache.selector import ByApproved, Receipt, Selector
from prefold.cache.survey import FoundBlocks, Lookup, found_blocks, survey
from prefold.cache.trees import Trees
from prefold.cache.usage import Usage
from prefold.errors import ConfigError, InvalidInputError, StateError
from prefold.eviction.cost import PrefillCost
from prefold.eviction.queue import EvictionQueue
from prefold.eviction.quota import NO_QUOTAS, Quotas, QuotaSettings
from prefold.eviction.registry import DEFAULT_POLICY, make_policy
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.identity.secret import MasterSecret
from prefold.tree.retention import KEEP, Retention


class PrefixCache:
    """A pool of blocks and what is cached in it. One thread.

    Attributes:
        approved: The approvals that hold, and what they pin.
        room: How many blocks a domain can have.
        keys: Block keys, the blocks behind them, and contents in place of tokens.
        cost: What prefill takes here; told by whoever carries steps out.
        browser: Shows the trees a few runs at a time.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        clock: Callable[[], float],
        block_size: int = 16,
        policy: str = DEFAULT_POLICY,
        quotas: QuotaSettings = NO_QUOTAS,
        master_secret: MasterSecret | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            num_blocks: Blocks of the pool, for active requests and cached KV.
            clock: Seconds, never decreasing; only differences are used.
            block_size: Token positions in a block.
            policy: Name of the eviction policy; see ``prefold.eviction.registry``.
            quotas: What is whose.
            master_secret: Roots the block keys; without one they mean nothing elsewhere.

        Raises:
            ConfigError: No blocks, a block size below 1, or an unknown policy.
        """
        if block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._pool = BlockPool(num_blocks)
        self.cost = PrefillCost()
        self._quotas = Quotas(num_blocks, quotas)
        self._trees = Trees(self._pool, block_size, clock, self._quotas.of)
        make = partial(make_policy, policy, self.cost, num_blocks)
        queue = EvictionQueue(make, ranks_across=quotas.ranks_across)
        self.room = Room(self._pool, self._trees, self._quotas, queue, clock)
        self._paths = LeasePaths(self._pool, Usage(queue, block_size, clock))
        self._frontiers = Frontiers()
        self.keys = KeyIndex(master_secret or MasterSecret.generate(), self._trees)
        self._leases: set[Lease] = set()
        self.approved = ApprovedPrefixes(num_blocks, self._quotas, self._trees, clock)
        self.browser = TreeBrowser(self._trees, self.approved, self.room, clock)
        self._invalidation = Invalidation(
            self._trees, self.approved, self._paths, self._frontiers, self.room, clock
        )

    # -- a sequence's calls --------------------------------------------------------

    def acquire(
        self,
        fingerprint: Fingerprint,
        domain: Domain,
        tokens: TokenIds,
        *,
        access: Access = READ_WRITE,
        retention: Retention = KEEP,
        limit: int | None = None,
    ) -> Lease:
        """Pin the longest cached prefix of ``tokens`` that ``domain`` may read.

        Never matches the last token: one must be computed, to have logits; nor more than
        ``limit``, for who needs the logits of more than that. The match ends at a whole
        block; where the next block agrees in four tokens or more, the lease has a pending
        copy of them. O(nodes of the path), and one comparison of arrays of that length.

        Raises:
            InvalidInputError: As ``ContentIds.check``, or another block size is meant.
        """
        self.keys.contents.check(tokens)
        self.expire_due()
        self._trees.bury_too_old()
        tree, audiences = self._trees.of(fingerprint), access.audiences(domain)
        found = survey(tree, audiences, tokens, access, limit)
        lease = Lease(
            tree=tree,
            terms=LeaseTerms(
                audiences=audiences,
                access=access,
                account=self._quotas.of_domain(domain),
                retention=retention,
            ),
            tokens=tokens,
            miss=self._trees.explain(fingerprint, audiences, tokens, found.miss),
            started_at=found.at,
        )
        if not access.write:
            self._paths.throw_away(lease)
        self._paths.begin(lease, found)
        self.room.watch_copy(lease)
        self._enter(lease)
        return lease

    def reserve(self, lease: Lease, num_tokens: int) -> None:
        """Give the lease blocks for positions 0 to ``num_tokens`` - 1, as far as it lacks.

        Takes free blocks, then sweeps dead ones, then evicts, then drops pending
        copies, this lease's or another's, for the block their source pins.

        Raises:
            OutOfBlocksError: With both numbers. Only pending copies may be gone.
            LeaseReleasedError: The lease was released.
        """
        lease.check_live()
        missing = num_blocks_for(num_tokens, self.block_size) - len(lease.table)
        if missing > 0:
            self.expire_due()
            lease.table.append(self.room.take(missing, lease))

    def copied(self, lease: Lease) -> None:
        """Note that the pending copy was carried out: its source is pinned no longer.

        Raises:
            StateError: There is no pending copy.
        """
        lease.check_live()
        if lease.copy_source is None:
            raise StateError("the lease has no pending copy")
        self.room.unpin_source(lease)

    def commit(self, lease: Lease, tokens: TokenIds, computed: int) -> None:
        """Publish the full blocks among the first ``computed`` tokens.

        Call it when a block became full and its step has finished. Where the tree has
        such a block already, that one is adopted and the lease's own is freed, so
        entries of ``lease.block_ids`` may change. Reads only what follows the published
        part; O(1) for one block.

        Raises:
            InvalidInputError: ``computed`` exceeds ``tokens`` or the reserved blocks,
                or falls below what is published.
            LeaseReleasedError: The lease was released.
        """
        lease.check_live()
        lease.check_computed(tokens, computed)
        lease.tokens = tokens
        full = computed // self.block_size
        if full > lease.num_published:
            self._paths.publish(lease, full)
            self._frontiers.refile(lease)

    def adopt(self, lease: Lease, tokens: TokenIds, computed: int) -> int:
        """Skip what others have published meanwhile; return how many tokens then have KV.

        Call it before a prefill chunk. Never skips the last token. Publishes first
        what is full. A partly filled or reserved block that is replaced is freed.

        Raises:
            InvalidInputError: As ``commit``.
            LeaseReleasedError: The lease was released.
        """
        self.commit(lease, tokens, computed)
        if not lease.access.read or lease.is_doomed:
            return computed
        limit = (len(tokens) - 1) // self.block_size
        end = self._paths.walk(lease, limit)
        if lease.copy_source is not None and end.position * self.block_size > computed:
            self.room.drop_copy(lease)
            # What it kept apart may have been merged, and what it kept may be gone.
            end = self._paths.walk(lease, limit)
        if end.position * self.block_size <= computed:
            return computed
        self._paths.move(lease, end)
        self._frontiers.refile(lease)
        return lease.num_published_tokens

    def release(self, lease: Lease, tokens: TokenIds, computed: int) -> None:
        """End the lease, whatever became of its request.

        Publishes the full blocks and the partial tail of exactly ``computed`` tokens.
        After an exception inside a step, pass what was computed before that step.

        Raises:
            InvalidInputError: As ``commit``; the lease then is as it was.
            LeaseReleasedError: It was released before.
        """
        self.commit(lease, tokens, computed)
        if lease.copy_source is not None:
            self.room.drop_copy(lease)
        self._frontiers.remove(lease)
        self._paths.end(lease, computed)
        self._leases.discard(lease)
        self.room.settle()

    def fork(
        self, lease: Lease, tokens: TokenIds, computed: int, num_forks: int
    ) -> list[Fork]:
        """Return new leases that share everything computed so far.

        Full blocks are published and shared; of a partial tail each fork gets a copy,
        which the caller carries out at once, before anything else.

        Raises:
            InvalidInputError: As ``commit``, or fewer than one fork.
            StateError: The lease has a pending copy.
            OutOfBlocksError: There is no room for the tails; no fork was made.
            LeaseReleasedError: The lease was released.
        """
        if num_forks < 1:
            raise InvalidInputError(f"num_forks must be at least 1, got {num_forks}")
        lease.check_live()
        if lease.copy_source is not None:
            raise StateError("a lease with a pending copy cannot be forked")
        self.commit(lease, tokens, computed)
        tail = computed % self.block_size
        targets = self.room.take(num_forks if tail else 0, lease)
        own = [targets[index : index + 1] for index in range(num_forks)]
        forks = [self._paths.branch(lease, target, tail) for target in own]
        for fork in forks:
            self._enter(fork.lease)
        return forks

    # -- questions -----------------------------------------------------------------

    def lookup(
        self,
        fingerprint: Fingerprint,
        domain: Domain,
        tokens: TokenIds,
        *,
        access: Access = READ_WRITE,
        limit: int | None = None,
    ) -> Lookup:
        """Return what ``acquire`` would find. Has no effect at all.

        Raises:
            InvalidInputError: As ``acquire``.
        """
        self.keys.contents.check(tokens)
        tree, audiences = self._trees.peek(fingerprint), access.audiences(domain)
        found = survey(tree, audiences, tokens, access, limit)
        frontier = None
        if access.read:
            frontier = self._frontiers.find(
                found.ends, tokens, audiences[-1], self.block_size
            )
        return Lookup(
            num_matched_tokens=found.num_matched_tokens,
            num_hit_tokens=found.num_matched_tokens + found.num_copy_tokens,
            miss=self._trees.explain(fingerprint, audiences, tokens, found.miss),
            frontier=frontier,
            end=found.ends[0].node,
        )

    def find_blocks(
        self,
        fingerprint: Fingerprint,
        domain: Domain,
        tokens: TokenIds,
        *,
        access: Access = READ_WRITE,
    ) -> FoundBlocks:
        """Return the blocks that ``acquire`` would match and copy from. Has no effect.

        Raises:
            InvalidInputError: As ``acquire``.
        """
        self.keys.contents.check(tokens)
        tree = self._trees.peek(fingerprint)
        return found_blocks(tree, survey(tree, access.audiences(domain), tokens, access))

    @property
    def generations(self) -> npt.NDArray[np.int64]:
        """How often each block was handed out; do not change it."""
        return self._pool.generations

    def version(self, fingerprint: Fingerprint) -> int:
        """Return a number that changes whenever ``lookup`` could answer differently."""
        # Time alone ends what is cached or approved, and must show here.
        self.expire_due()
        return self._trees.peek(fingerprint).version

    @property
    def counts(self) -> BlockCounts:
        return self._pool.counts

    def snapshot(self) -> CacheSnapshot:
        """Return the figures of this moment."""
        return take_snapshot(self._pool, self._trees, self.room, len(self._leases))

    def listing(self, bounds: ListingBounds) -> CacheListing:
        """Return what is cached, as far as the bounds go. Changes nothing."""
        return self._trees.listing(bounds, self.approved.labels())

    # -- approval and invalidation -------------------------------------------------

    def approve(
        self, lease: Lease, num_tokens: int, terms: ApprovalTerms, *, num_kept: int = 0
    ) -> Approval:
        """Let all readers of a lease's domain share what the lease has committed.

        Call it before the release of a lease that was acquired ``APPROVING``. Whatever
        else that has committed is freed with it. ``ApprovedPrefixes.approve`` says what is
        approved and what is raised; ``num_kept`` blocks are left unpinned.
        """
        return self.approved.approve(lease, num_tokens, terms, num_kept)

    def withdraw(self, approval_id: ApprovalId) -> Receipt:
        """End an approval: ``invalidate(ByApproved(...))``. Requests that use it go on."""
        return self.invalidate(ByApproved(approval_id=approval_id))

    def invalidate(self, selector: Selector) -> Receipt:
        """Make everything the selector covers unfindable, at once.

        Requests admitted before finish on the blocks they hold, and leave nothing to find.
        Approvals and pins of what is covered end. Blocks come free as they are needed.
        O(audiences, approvals, leases), not blocks; by prefix, O(nodes that begin so).

        Raises:
            InvalidInputError: A prefix is shorter than a block; nothing was changed.
        """
        self.expire_due()
        return self._invalidation.carry_out(selector, self._leases, self.keys.contents)

    def expire_due(self) -> None:
        """End what has expired. O(1) where nothing has; every call that matters does."""
        self.approved.expire_due()
        self._trees.kill_expired()

    def check_invariants(self) -> None:
        """Prove the accounting against pool, trees and leases. O(blocks and tokens).

        Raises:
            InvariantError: Something does not add up.
        """
        check_cache(
            pool=self._pool,
            trees=self._trees.all(),
            leases=self._leases,
            room=self.room,
            frontiers=self._frontiers,
            approved=self.approved,
        )
        self.keys.contents.check_invariants()
        self.cost.check_invariants()

    def _enter(self, lease: Lease) -> None:
        self._leases.add(lease)
        self._frontiers.refile(lease)
