"""Marking: what an approval changes in a tree, and what it leaves when it ends."""

from __future__ import annotations

from prefold.tree.loss import Tombstone
from prefold.tree.mark import Mark
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.prefix_tree import PrefixTree


def cut_at(tree: PrefixTree, node: Node, num_blocks: int) -> Node:
    """Return the node on the path to ``node`` that ends after so many blocks."""
    end = num_blocks * tree.block_size
    while node.start >= end and node.parent is not None:
        node = node.parent
    if node.end > end:
        node = tree.split(node, (end - node.start) // tree.block_size)
    return node


def mark_path(tree: PrefixTree, end: Node, mark: Mark) -> None:
    """Put a mark on every node down to ``end``. O(depth in nodes)."""
    for node in path_to(end):
        node.marks |= {mark}
        if node.parent is not None and node.key is not None:
            tree.tombstones.remove(node.parent, node.key)
    tree.version += 1


def hang_tombstone(tree: PrefixTree, top: Node, tombstone: Tombstone) -> None:
    """Explain, above what is closed now, why its readers' matches stop there."""
    if top.parent is not None and top.key is not None:
        tree.tombstones.put(top.parent, top.key, tombstone)
