"""Invalidation: what makes nodes of a tree dead, other than eviction.

Each takes effect in O(1), or in the bounded number of nodes it says: from then on no
walk meets what is dead. Freeing it is left to ``PrefixTree.sweep``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from prefold.identity.domain import Audience
from prefold.tree.dead import all_children
from prefold.tree.graves import Grave
from prefold.tree.loss import LossCause, Tombstone
from prefold.tree.node import Node, Readers
from prefold.tree.prefix_tree import PrefixTree

#: Nodes that an age cut-off looks at before it returns.
MAX_COUNTED = 10_000

#: Nodes that a call which does housekeeping looks at.
NODES_A_STEP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledBlocks:
    """How many published blocks died, throw-away ones left out.

    Attributes:
        num_leased: Of those, the ones on some lease's path.
        is_upper_bound: Whether there were too many nodes to count.
    """

    num_blocks: int
    num_leased: int
    is_upper_bound: bool = False


def kill_all(tree: PrefixTree, grave: Grave | None = None) -> list[Readers]:
    """Raise the tree's epoch: nothing here is found again. Returns what there was."""
    retired = tree.audiences.retire_all(grave)
    tree.dead.extend([entry for readers in retired for entry in readers.entries])
    tree.note_invalidation()
    return retired


def kill_audience(
    tree: PrefixTree, audience: Audience, grave: Grave | None = None
) -> Readers | None:
    """Raise one audience's epoch in this tree; None if it had nothing here."""
    readers = tree.audiences.retire(audience, grave)
    if readers is not None:
        tree.dead.extend(readers.entries)
        tree.note_invalidation()
    return readers


def kill_subtree(
    tree: PrefixTree,
    node: Node,
    at: float,
    cause: LossCause = LossCause.INVALIDATED,
    selector: str | None = None,
) -> KilledBlocks:
    """Unlink a node: it and everything below is not found again. O(nodes below)."""
    killed = count_blocks(nodes_below(tree, [node]))
    key, parent = node.key, node.parent
    num_lost = killed.num_blocks + tree.tombstones.take_all(node)
    tree.bury(node)
    if parent is not None and key is not None:
        tree.tombstones.put(
            parent,
            key,
            Tombstone(
                at=at, cause=cause, policy=None, num_blocks=num_lost, selector=selector
            ),
        )
    return killed


def kill_expired(tree: PrefixTree, now: float) -> None:
    """Unlink what was not used again in time, some of it if there is much.

    No walk meets the rest either.
    """
    for _ in range(NODES_A_STEP):
        node = tree.expiries.take(now)
        if node is None:
            return
        if tree.audiences.is_doomed(node):
            continue
        top, parent = node, node.parent
        # What is above may be over, too, and has not come up yet.
        while parent is not None and not parent.is_root and parent.is_expired(now):
            top, parent = parent, parent.parent
        kill_subtree(tree, top, top.expires_at, LossCause.EXPIRED)


def kill_older(tree: PrefixTree, born_after: float, cut: Grave | None) -> KilledBlocks:
    """Let every node made before ``born_after`` be dead, and all below it.

    ``cut`` says what did that, to whom misses it later.

    Looks at no more than ``MAX_COUNTED`` nodes. Where there are more, the count is the
    most it can be, and ``bury_too_old`` has the rest to do.
    """
    audiences = tree.audiences
    audiences.born_after = max(audiences.born_after, born_after)
    audiences.cut = cut
    tree.note_invalidation()
    tree.age_cursor.restart([tree.root])
    living: list[Node] = []
    dying: list[Node] = []
    for _ in range(MAX_COUNTED):
        node = tree.age_cursor.take()
        if node is None:
            break
        if not (node.is_root or audiences.is_present(node.readers)):
            continue
        top = _topmost_too_old(tree, node)
        if top is not None:
            dying.append(top)
        else:
            living.append(node)
            tree.age_cursor.add(all_children(node))
    lost = count_blocks(nodes_below(tree, dying))
    if tree.age_cursor:
        present = [each for each in audiences.present() if not each.is_throwaway]
        num_blocks = sum(readers.num_blocks for readers in present)
        num_idle = sum(readers.num_idle_blocks for readers in present)
        kept = count_blocks(living)
        lost = KilledBlocks(
            num_blocks=num_blocks - kept.num_blocks,
            num_leased=num_blocks - num_idle - kept.num_leased,
            is_upper_bound=True,
        )
    for node in dying:
        _bury_too_old(tree, node)
    return lost


def bury_too_old(tree: PrefixTree) -> None:
    """Unlink what became too old, among the next ``NODES_A_STEP`` nodes."""
    for _ in range(NODES_A_STEP):
        node = tree.age_cursor.take()
        if node is None:
            return
        if not (node.is_root or tree.audiences.is_present(node.readers)):
            continue
        top = _topmost_too_old(tree, node)
        if top is not None:
            _bury_too_old(tree, top)
        else:
            tree.age_cursor.add(all_children(node))


def _bury_too_old(tree: PrefixTree, node: Node) -> None:
    cut = tree.audiences.cut
    at, selector = (0.0, None) if cut is None else (cut.at, cut.selector)
    kill_subtree(tree, node, at, selector=selector)


def _topmost_too_old(tree: PrefixTree, node: Node) -> Node | None:
    """Return the node to unlink for ``node``'s sake; None if it is not too old."""
    born_after = tree.audiences.born_after
    if node.is_root or node.created_at >= born_after:
        return None
    # A split after the search went by leaves an upper half above it.
    parent = node.parent
    while parent is not None and not parent.is_root and parent.created_at < born_after:
        node, parent = parent, parent.parent
    return node


def nodes_below(tree: PrefixTree, tops: Collection[Node]) -> list[Node]:
    """Return the nodes from ``tops`` down, each once, without what died before."""
    nodes = list(dict.fromkeys(tops))
    seen = set(nodes)
    for node in nodes:
        for child in all_children(node):
            if child not in seen and tree.audiences.is_present(child.readers):
                seen.add(child)
                nodes.append(child)
    return nodes


def count_blocks(nodes: Collection[Node]) -> KilledBlocks:
    """Count the blocks of nodes, throw-away ones left out."""
    published = [node for node in nodes if not node.readers.is_throwaway]
    num_blocks = sum(node.num_blocks for node in published)
    num_idle = sum(node.num_blocks for node in published if node.count == 0)
    return KilledBlocks(num_blocks=num_blocks, num_leased=num_blocks - num_idle)
