"""Lease paths: how a lease moves down the tree as its sequence computes.

::

    root ── A ── B ── C        the lease ends at C and has one count on A, B and C
                  `── D        a block published by another sequence meanwhile

A walk from where the lease ends finds what is there already (adopted); the rest is
published. So a lease always ends at a node's end, and equal blocks of one audience
never stand side by side.
"""

from __future__ import annotations

from prefold.blocks.pool import BlockPool, BlockState
from prefold.blocks.table import BlockCopy, BlockId, BlockIds, BlockTable
from prefold.cache.lease import Fork, Lease
from prefold.cache.survey import Survey
from prefold.cache.usage import Usage
from prefold.identity.domain import Audience, AudienceKind
from prefold.tree.node import Node
from prefold.tree.path import count_hit, count_user, path_ids, path_to
from prefold.tree.walk import Endpoint, View, longest_paths


class LeasePaths:
    """Moves leases. Owned by the cache."""

    __slots__ = ("_last_serial", "_pool", "_usage")

    def __init__(self, pool: BlockPool, usage: Usage) -> None:
        self._pool = pool
        self._usage = usage
        self._last_serial = 0

    def begin(self, lease: Lease, found: Survey) -> None:
        """Pin the longest path found, and the block to copy from, if there is one.

        A copy source is cut down to that one block, so that only as much is pinned.
        """
        tree = lease.tree
        end = found.ends[0]
        node = tree.settle(end)
        source: Node | None = None
        agreement = found.agreement
        if found.num_copy_tokens and agreement is not None:
            source = agreement.child
            if source is None:
                # The next block of a run. The lower half keeps the node, so after the
                # split that is what begins with it.
                if agreement.endpoint is not end:
                    tree.settle(agreement.endpoint)
                source = agreement.endpoint.node
            if source.num_blocks > 1:
                source = tree.split(source, 1)
        # The source goes first: pinning may push partial leaves out of inner maps.
        if source is not None:
            tree.pin(source, lease.retention)
            lease.copy_source = source
            lease.num_copy_tokens = found.num_copy_tokens
        lease.start = self._usage.begin(node, found, lease.tokens)
        tree.pin(node, lease.retention)
        count_hit(node)
        if not lease.access.approves:
            count_user(node, lease.account, found.at)
        lease.node = node
        lease.num_published = end.position
        lease.num_matched_tokens = found.num_matched_tokens
        lease.table = BlockTable(path_ids(node, below=tree.root))

    def walk(self, lease: Lease, limit: int) -> Endpoint:
        """Return how far ``lease.tokens`` can be followed from where the lease ends."""
        tree, node = lease.tree, lease.node
        view = self._view(lease)
        rank = view.readable.index(node.readers) if node.readers in view.readable else 0
        start = Endpoint(node, node.num_blocks, rank, lease.num_published)
        return longest_paths(start, lease.tokens, limit, view, tree.block_size)[0]

    def _view(self, lease: Lease) -> View:
        audiences: list[Audience] = []
        if lease.access.read and not lease.is_doomed:
            audiences.extend(lease.audiences)
        elif lease.throwaway is None:
            audiences.append(lease.own_audience)
        if lease.throwaway is not None:
            audiences.append(lease.throwaway)
        return lease.tree.view(audiences, is_approving=lease.access.approves)

    def publish(self, lease: Lease, full: int) -> None:
        """Adopt what is there of the first ``full`` blocks, and publish the rest."""
        best = self.walk(lease, full)
        if best.position > lease.num_published:
            self.move(lease, best)
        begin = lease.num_published
        if begin < full:
            tree = lease.tree
            size = tree.block_size
            tokens = lease.tokens[begin * size : full * size]
            readers = tree.audiences.of(lease.own_audience)
            lease.node = tree.publish(
                lease.node, readers, tokens, lease.block_ids[begin:full], lease.retention
            )
            lease.num_published = full

    def move(self, lease: Lease, end: Endpoint) -> None:
        """Let the lease end at ``end``, below where it ends now, and adopt the blocks."""
        tree, left = lease.tree, lease.node
        node = tree.settle(end)
        adopted = path_ids(node, below=left)
        replaced = lease.table.replace(lease.num_published, adopted)
        self._pool.free(replaced, BlockState.PRIVATE)
        self._usage.adopt(node, left)
        tree.pin(node, lease.retention, below=left)
        lease.node = node
        lease.num_published = end.position
        tree.merge(left)

    def branch(self, lease: Lease, target: BlockIds, num_tail: int) -> Fork:
        """Return a fork that ends where ``lease`` does, with ``target`` as its own block.

        The last ``num_tail`` tokens, which fill no block, are to be copied there.
        """
        fork = Lease(
            tree=lease.tree,
            terms=lease.terms,
            tokens=lease.tokens,
            miss=lease.miss,
            started_at=lease.started_at,
        )
        fork.node = lease.node
        fork.throwaway = lease.throwaway
        fork.is_doomed = lease.is_doomed
        fork.start = lease.start
        fork.num_published = lease.num_published
        fork.num_matched_tokens = lease.num_published_tokens
        fork.table = BlockTable(lease.block_ids[: lease.num_published].copy())
        fork.table.append(target)
        fork.tree.pin(fork.node, fork.retention)
        if not num_tail:
            return Fork(lease=fork, copy=None)
        source = BlockId(int(lease.block_ids[lease.num_published]))
        copy = BlockCopy(source=source, target=BlockId(int(target[0])), num_tokens=num_tail)
        return Fork(lease=fork, copy=copy)

    def end(self, lease: Lease, computed: int) -> None:
        """Publish the partial tail, give the private blocks back, and leave the tree."""
        tail = self._publish_tail(lease, computed)
        kept = lease.num_published + (tail is not None)
        self._pool.free(lease.block_ids[kept:], BlockState.PRIVATE)
        lease.is_released = True
        tree, node = lease.tree, lease.node
        self._usage.end(lease, computed, tail)
        tree.unpin(node, lease.retention)
        if lease.retention.ends_conversation:
            tree.end_conversation(node, tail)
        for at in reversed(path_to(node)):
            tree.merge(at)

    def _publish_tail(self, lease: Lease, computed: int) -> Node | None:
        tree, begin = lease.tree, lease.num_published
        tail = lease.tokens[begin * tree.block_size : computed]
        # Whole blocks are approved, so what fills none could never be read.
        is_kept = lease.throwaway is None and not lease.access.approves
        if len(tail) == 0 or not is_kept:
            return None
        own = tree.audiences.of(lease.own_audience)
        view = self._view(lease)
        ids = lease.block_ids[begin : begin + 1]
        published = tree.publish_partial(lease.node, view, tail, ids, lease.retention)
        tree.audiences.forget_if_empty(own)
        return published

    def throw_away(self, lease: Lease) -> None:
        """Make the lease publish where nobody but its forks can read."""
        if lease.throwaway is None:
            self._last_serial += 1
            lease.throwaway = Audience(
                AudienceKind.THROWAWAY, lease.audiences[-1].domain, self._last_serial
            )
