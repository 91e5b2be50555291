"""Tree invariants: everything that must hold between a tree's nodes.

The caller says where leases and copy pins end; all the rest is derived again here and
compared, at the cost of reading every token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from prefold.errors import InvariantError
from prefold.tree.dead import all_children
from prefold.tree.inner import MAX_CANDIDATES, inner_key
from prefold.tree.node import Node, Readers
from prefold.tree.prefix_tree import PrefixTree


def check_tree(tree: PrefixTree, pins: Iterable[Node]) -> list[Node]:
    """Check one tree and return all its nodes that are not freed, the root left out.

    Args:
        tree: The tree.
        pins: For every lease and pending copy, the node it ends at; with repetitions.

    Raises:
        InvariantError: Something does not hold.
    """
    counts = _counts(pins)
    nodes = _all_nodes(tree, counts)
    if len(nodes) != tree.num_nodes:
        raise InvariantError(f"{len(nodes)} nodes found, the tree counts {tree.num_nodes}")
    for node in [tree.root, *nodes]:
        _check_children(tree, node)
    for node in nodes:
        _check_node(tree, node)
        if node.count != counts[node]:
            raise InvariantError(f"a node has count {node.count}, {counts[node]} end below")
    _check_totals(tree, nodes)
    tree.tombstones.check_invariants([tree.root, *nodes])
    tree.audiences.graves.check_invariants()
    tree.expiries.check_invariants(nodes)
    return nodes


def _counts(pins: Iterable[Node]) -> Counter[Node]:
    counts: Counter[Node] = Counter()
    for pin in pins:
        at: Node | None = pin
        while at is not None:
            counts[at] += 1
            at = at.parent
    return counts


def _all_nodes(tree: PrefixTree, counts: Counter[Node]) -> list[Node]:
    found: dict[Node, None] = {}
    # Live ones hang below the root; of the dead, some only below a lease's path, and
    # some only wait on the dead list.
    pending = [tree.root, *counts, *tree.dead.waiting()]
    while pending:
        node = pending.pop()
        if node not in found and not node.is_freed:
            found[node] = None
            pending.extend(all_children(node))
    found.pop(tree.root)
    return list(found)


def _check_node(tree: PrefixTree, node: Node) -> None:
    size = tree.block_size
    parent = node.parent
    if parent is None or node.is_freed:
        raise InvariantError("a node has no parent, or was freed and is still there")
    # What is unlinked and not leased is only waiting to be freed, while its parent lives
    # on and may grow or shrink.
    if (node.is_attached or node.count) and node.start != parent.end:
        raise InvariantError("a run does not start where its parent's ends")
    if node.is_partial:
        if node.num_blocks != 1 or not 0 < node.num_tokens < size or node.has_children:
            raise InvariantError("a partial leaf is not one partly filled block")
    elif node.num_blocks < 1 or node.num_tokens != node.num_blocks * size:
        raise InvariantError("a run is not made of whole blocks")
    is_listed = node in all_children(parent)
    if node.is_attached != is_listed:
        raise InvariantError("a node's parent does not list it, or does though unlinked")
    _check_expiry(tree, node, parent)
    if node.count == 0 and node.readers.is_throwaway:
        raise InvariantError("a throw-away node outlived its leases")
    _check_marks(node, parent)


def _check_expiry(tree: PrefixTree, node: Node, parent: Node) -> None:
    if node.count or tree.audiences.is_doomed(node):
        return
    if node.expires_at < math.inf and not node.is_watched:
        raise InvariantError("an idle node would never expire")
    if parent.readers is node.readers and node.expires_at > parent.expires_at:
        raise InvariantError("a node outlives what it hangs below")


def _check_marks(node: Node, parent: Node) -> None:
    if not node.marks:
        return
    if not node.readers.is_approved:
        raise InvariantError("something is approved in a node of one domain alone")
    goes_on = node.is_attached and parent.readers is node.readers
    if goes_on and not node.marks <= parent.marks:
        raise InvariantError("an approval has a gap")


def _check_children(tree: PrefixTree, node: Node) -> None:
    partial = 0
    for key, child in (node.children or {}).items():
        expected = (child.readers, child.block_bytes(0, tree.block_size))
        if child.key != key or key != expected or child.parent is not node:
            raise InvariantError("a child is filed under another key than its first block")
    for inner, listed in (node.inner or {}).items():
        if not 0 < len(listed) <= MAX_CANDIDATES or len(set(listed)) != len(listed):
            raise InvariantError("an inner map lists no child, too many, or one twice")
        for child in listed:
            if inner_key(child) != inner or child.parent is not node or child.is_freed:
                raise InvariantError("an inner map lists a child under a wrong token")
            partial += child.is_partial
    if partial != node.num_partial:
        raise InvariantError("the count of partial leaves is wrong")
    if node.children is not None and not node.children:
        raise InvariantError("an empty map of children was kept")


def _check_totals(tree: PrefixTree, nodes: list[Node]) -> None:
    present = tree.audiences.present()
    by_readers: dict[Readers, list[Node]] = {readers: [] for readers in present}
    for node in nodes:
        by_readers.setdefault(node.readers, []).append(node)
    for readers, its in by_readers.items():
        totals = (
            len(its),
            sum(node.num_blocks for node in its),
            sum(node.num_blocks for node in its if node.count == 0),
        )
        if totals != (readers.num_nodes, readers.num_blocks, readers.num_idle_blocks):
            raise InvariantError("an audience's totals are not those of its nodes")
        if not its and not readers.num_tombstones:
            raise InvariantError("an audience with nothing here was kept")
        if tree.audiences.is_present(readers) and readers not in present:
            raise InvariantError("an audience was forgotten though it has nodes")
        entries = {
            node
            for node in its
            if node.is_attached
            and node.parent is not None
            and (node.parent.is_root or node.parent.readers is not readers)
        }
        if entries != readers.entries:
            raise InvariantError("an audience's entries are not where it begins")
