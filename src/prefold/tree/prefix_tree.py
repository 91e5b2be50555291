"""Prefix tree: the cached runs of one fingerprint, and the counts that protect them.

::

    root ── [system prompt, 64 blocks] ─┬─ [question 1, 2 blocks] ── (partial leaf)
                                        ├─ [question 2, 9 blocks]
                                        `─ ...

A lease pins by path counts: one on every node from its last to the root. It ends at a
node's end, so runs are split where leases end and merged again when they leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from prefold.blocks.pool import BlockPool, BlockState
from prefold.blocks.table import BlockIds, TokenIds
from prefold.errors import InvariantError
from prefold.identity.domain import PUBLIC, Audience, AudienceKind
from prefold.tree.account import Account
from prefold.tree.age_cursor import AgeCursor
from prefold.tree.audiences import AudienceTable
from prefold.tree.dead import DeadList
from prefold.tree.expiry import Expiries
from prefold.tree.inner import file_child, inner_key, is_filed, unfile_child
from prefold.tree.keeping import begin_keeping, end_conversation, is_kept_alike, touch
from prefold.tree.node import Node, Readers
from prefold.tree.retention import KEEP, Retention
from prefold.tree.shape import merge, split
from prefold.tree.tombstones import Tombstones
from prefold.tree.walk import Endpoint, View


class PrefixTree:
    """All published runs of one fingerprint. Owned by the cache; one thread.

    Attributes:
        version: Changes whenever a look-up could answer differently than before.
        num_nodes: Nodes not yet freed, the root left out.
    """

    __slots__ = (
        "_clock",
        "_idle_leaves",
        "_pool",
        "age_cursor",
        "audiences",
        "block_size",
        "dead",
        "expiries",
        "num_invalidations",
        "num_nodes",
        "root",
        "tombstones",
        "version",
    )

    def __init__(
        self,
        *,
        tree_id: int,
        pool: BlockPool,
        block_size: int,
        clock: Callable[[], float],
        max_tombstones: int,
        account_of: Callable[[Audience], Account],
    ) -> None:
        self._pool = pool
        self._clock = clock
        self.block_size = block_size
        self.audiences = AudienceTable(tree_id, account_of)
        # The root belongs to no audience: an object that no key is ever made with.
        nobody = AudienceTable(tree_id, account_of).of(
            Audience(AudienceKind.APPROVED, PUBLIC)
        )
        self.root = Node(readers=nobody, parent=None, start=0, at=clock())
        self.dead = DeadList()
        self.age_cursor = AgeCursor()
        self.expiries = Expiries()
        self.tombstones = Tombstones(max_tombstones, self.audiences.forget_if_empty)
        self._idle_leaves: list[Node] = []
        self.version = 0
        self.num_invalidations = 0
        self.num_nodes = 0

    def view(self, audiences: Sequence[Audience], *, is_approving: bool = False) -> View:
        """Return what a request that reads ``audiences``, wide to narrow, sees now."""
        readable = self.audiences.readable(audiences)
        return View(readable, self._clock(), self.audiences.born_after, is_approving)

    # -- pins ----------------------------------------------------------------------

    def pin(
        self, node: Node, retention: Retention = KEEP, *, below: Node | None = None
    ) -> None:
        """Add one to every count from ``node`` up to ``below``, or the root. O(nodes)."""
        now = self._clock()
        at = node
        while at.parent is not None and at is not below:
            if at.count == 0:
                self._pool.use(at.block_ids)
                at.readers.add_idle(-at.num_blocks)
            at.count += 1
            at.is_ended = False
            at.wanted_until = -math.inf
            touch(at, now, retention)
            if at.is_attached:
                self._file(at.parent, at)
            at = at.parent

    def unpin(self, node: Node, retention: Retention = KEEP) -> None:
        """Take one from every count from ``node`` to the root. O(depth in nodes).

        Frees what then nobody can reach any more: throw-away nodes, dead ones, and at
        the end of the path those that nothing is approved in.
        """
        now = self._clock()
        topmost_dead: Node | None = None
        at = node
        while at.parent is not None:
            if at.count == 0:
                raise InvariantError("a node was unpinned more often than pinned")
            at.count -= 1
            touch(at, now, retention)
            if at.count == 0:
                self._pool.rest(at.block_ids)
                at.readers.add_idle(at.num_blocks)
                self.expiries.watch(at)
                if at.is_evictable:
                    self._idle_leaves.append(at)
            if at.readers.is_throwaway or self.audiences.is_dead(at):
                topmost_dead = at
            at = at.parent
        if topmost_dead is not None:
            self._free_abandoned(node, topmost_dead)
        self.free_unmarked(node)

    def _free_abandoned(self, node: Node, topmost: Node) -> None:
        at: Node | None = node
        above = topmost.parent
        while at is not None and at is not above:
            parent = at.parent
            if at.count == 0 and not at.has_children:
                self.free_node(at)
            at = parent

    def free_unmarked(self, node: Node) -> None:
        """Free from ``node`` up what nothing is approved in, uses, or hangs below."""
        at = node
        while at.parent is not None and (
            at.is_freed or (at.is_unmarked and at.count == 0 and not at.has_children)
        ):
            parent = at.parent
            if not at.is_freed:
                self.free_node(at)
            at = parent

    # -- publish -------------------------------------------------------------------

    def publish(
        self,
        node: Node,
        readers: Readers,
        tokens: TokenIds,
        block_ids: BlockIds,
        retention: Retention = KEEP,
    ) -> Node:
        """Hang a run below ``node``, where a lease ends, and move that lease to its end.

        Extends ``node`` in place where only this lease passes through it, nothing hangs
        below, and it is kept and used in the same way; else adds a child with a count of
        one. O(blocks). No reachable child may begin with these tokens.
        """
        block_size = self.block_size
        self._remove_superseded(node, readers, tokens[:block_size])
        self._pool.publish(block_ids)
        readers.add_blocks(len(block_ids), self._clock())
        self.version += 1
        if (
            node.readers is readers
            and node.count == 1
            and not node.has_children
            and node.tombstones is None
            and not node.marks
            and not node.users
            and not node.num_forks
            and node.cohort is None
            and not self.audiences.is_dead(node)
            and is_kept_alike(node, self._clock(), retention)
        ):
            node.append_run(tokens, block_ids, self._clock())
            return node
        child = self._new_node(node, readers, tokens.copy(), block_ids.copy(), retention)
        child.key = (readers, child.block_bytes(0, block_size))
        child.count = 1
        if node.children is None:
            node.children = {}
        too_old = node.children.get(child.key)
        if too_old is not None:
            self.bury(too_old)
            node.children = node.children or {}
        node.children[child.key] = child
        self._file(node, child)
        return child

    def publish_partial(
        self,
        node: Node,
        view: View,
        tokens: TokenIds,
        block_ids: BlockIds,
        retention: Retention = KEEP,
    ) -> Node | None:
        """Hang a partial leaf of ``tokens``, fewer than a block, below ``node``.

        It belongs to the last audience of ``view``. Returns None, and takes no block,
        where a child that can be seen begins with these tokens already. The leaf is idle
        at once.
        """
        if view.has_child_with(node, tokens):
            return None
        readers = view.readable[-1]
        self._remove_superseded(node, readers, tokens)
        self._pool.publish(block_ids)
        self._pool.rest(block_ids)
        readers.add_blocks(1, self._clock())
        readers.add_idle(1)
        leaf = self._new_node(node, readers, tokens.copy(), block_ids.copy(), retention)
        leaf.is_partial = True
        node.num_partial += 1
        self._file(node, leaf)
        self.expiries.watch(leaf)
        self._idle_leaves.append(leaf)
        self.version += 1
        return leaf

    def _new_node(
        self,
        parent: Node,
        readers: Readers,
        tokens: TokenIds,
        block_ids: BlockIds,
        retention: Retention,
    ) -> Node:
        now = self._clock()
        node = Node(readers=readers, parent=parent, start=parent.end, at=now)
        node.set_run(tokens, block_ids)
        begin_keeping(node, now, retention)
        self.audiences.enter(node)
        self.num_nodes += 1
        return node

    def _file(self, parent: Node, child: Node) -> None:
        if self.audiences.is_dead(child):
            return
        # The dead must not take the place of the living.
        listed = (parent.inner or {}).get(inner_key(child), ())
        for dead in [each for each in listed if self.audiences.is_dead(each)]:
            self.bury(dead)
        if not is_filed(parent, child):
            self.version += 1
        pushed_out = file_child(parent, child)
        if pushed_out is None or not pushed_out.is_partial:
            return
        # It can no longer be found, so it is as good as gone: freed now, or by the
        # release of the last pin on it.
        parent.num_partial -= 1
        pushed_out.is_attached = False
        pushed_out.readers.entries.discard(pushed_out)
        if pushed_out.count == 0:
            self.free_node(pushed_out)

    def _remove_superseded(self, node: Node, readers: Readers, tokens: TokenIds) -> None:
        listed = (node.inner or {}).get((readers, int(tokens[0])), ())
        for child in list(listed):
            length = child.num_tokens
            if (
                child.is_partial
                and child.count == 0
                and length <= len(tokens)
                and np.array_equal(child.tokens, tokens[:length])
            ):
                self.free_node(child)
        if len(tokens) == self.block_size:
            self.tombstones.remove(node, (readers, tokens.tobytes()))

    # -- shape ---------------------------------------------------------------------

    def settle(self, end: Endpoint) -> Node:
        """Make ``end`` a node's end, splitting if it lies inside a run."""
        if end.is_node_end:
            return end.node
        return self.split(end.node, end.num_blocks)

    def split(self, node: Node, num_blocks: int) -> Node:
        """Cut a run after ``num_blocks`` blocks and return the new upper half."""
        upper = split(node, num_blocks, self.block_size)
        self.expiries.watch(upper)
        self.num_nodes += 1
        return upper

    def merge(self, node: Node) -> None:
        """Join ``node`` with its only child where no lease and no loss lies between."""
        # A dead node stays as it is: the dead list may be half-way through it. Nor does
        # one take an older child's age.
        if len(node.children or ()) != 1 or (
            self.num_invalidations
            and (self.audiences.is_doomed(node) or self.audiences.has_old_child(node))
        ):
            return
        child = merge(node)
        if child is not None:
            self.age_cursor.note_merge(child)
            self.expiries.watch(child)
            self.num_nodes -= 1
            if child.is_evictable:
                self._idle_leaves.append(child)

    # -- loss ----------------------------------------------------------------------

    def free_node(self, node: Node) -> None:
        """Free an idle node without children, and its blocks."""
        parent, readers = node.parent, node.readers
        if parent is None or node.count or node.has_children or node.is_freed:
            raise InvariantError("only an idle node without children can be freed")
        self.unlink(node)
        self.tombstones.take_all(node)
        if node.cohort is not None:
            node.cohort.leave(node.num_blocks)
        self._pool.free(node.block_ids, BlockState.IDLE)
        readers.add_blocks(-node.num_blocks, self._clock(), node.users)
        readers.add_idle(-node.num_blocks)
        readers.num_nodes -= 1
        self.num_nodes -= 1
        node.is_freed = True
        self.version += 1
        self.audiences.forget_if_empty(readers)

    def unlink(self, node: Node) -> None:
        """Take a node out of its parent's maps; it keeps its pointer to the parent."""
        parent = node.parent
        if parent is None or not node.is_attached:
            return
        node.is_attached = False
        unfile_child(parent, node)
        if node.is_partial:
            parent.num_partial -= 1
        elif parent.children is not None and node.key is not None:
            del parent.children[node.key]
            if not parent.children:
                parent.children = None
        node.readers.entries.discard(node)
        if parent.is_evictable:
            self._idle_leaves.append(parent)

    def bury(self, node: Node) -> None:
        """Unlink a dead node and leave its subtree to ``sweep``."""
        self.unlink(node)
        self.dead.extend([node])
        self.note_invalidation()

    def drop_tail(self, leaf: Node, num_blocks: int) -> None:
        """Free the last whole blocks of an idle leaf, but not all. O(blocks freed)."""
        dropped = leaf.drop_tail(num_blocks, self.block_size)
        self._pool.free(dropped, BlockState.IDLE)
        leaf.readers.add_blocks(-num_blocks, self._clock(), leaf.users)
        leaf.readers.add_idle(-num_blocks)
        self.version += 1

    def sweep(self, num_blocks: int) -> int:
        """Free dead nodes until ``num_blocks`` blocks came free; return how many did."""
        freed = 0
        while freed < num_blocks:
            node = self.dead.take()
            if node is None:
                break
            freed += node.num_blocks
            self.free_node(node)
        return freed

    def end_conversation(self, node: Node, tail: Node | None) -> None:
        """Let what only one conversation uses go first. O(depth in nodes)."""
        ended = end_conversation(node, tail)
        self._idle_leaves += [it for it in ended if it.is_evictable]

    def take_idle_leaves(self) -> list[Node]:
        """Return and forget the nodes that may have become evictable."""
        leaves, self._idle_leaves = self._idle_leaves, []
        return leaves

    def note_invalidation(self) -> None:
        """Note that nodes died other than by eviction."""
        self.num_invalidations += 1
        self.version += 1
