"""Shape: cutting one run into two nodes, and joining two into one.

Neither changes what is cached or who may read it. In a split the *lower* half keeps
the node object, in a merge the *child* does, so a pointer to where a lease ends stays
valid through both.
"""

from __future__ import annotations

import math

import numpy as np

from prefold.errors import InvariantError
from prefold.tree.inner import file_child, swap_child
from prefold.tree.keeping import are_kept_alike
from prefold.tree.node import Node


def split(node: Node, num_blocks: int, block_size: int) -> Node:
    """Cut a run after ``num_blocks`` blocks and return the new upper half. O(run)."""
    parent = node.parent
    if parent is None or not 0 < num_blocks < node.num_blocks:
        raise InvariantError("a split must leave blocks on both sides")
    cut = num_blocks * block_size
    upper = Node(readers=node.readers, parent=parent, start=node.start, at=node.created_at)
    upper.set_run(node.tokens[:cut].copy(), node.block_ids[:num_blocks].copy())
    upper.count = node.count
    upper.num_hits = node.num_hits
    upper.published_at = node.published_at
    upper.users = node.users
    upper.last_used_at = node.last_used_at
    upper.is_attached = node.is_attached
    upper.marks = node.marks
    upper.expires_at = node.expires_at
    upper.priority = node.priority
    upper.is_ended = node.is_ended
    upper.wanted_until = node.wanted_until
    # Who waits for no more than the upper half must not protect the lower one; who waits
    # for both looks it up again, now that the tree has changed.
    node.wanted_until = -math.inf
    upper.cohort = node.cohort
    upper.use = node.use
    upper.num_forks = node.num_forks
    upper.gap_s = node.gap_s
    _take_place(parent, node, upper)
    lower_contents = None
    if node.contents is not None:
        upper.contents = node.contents[:num_blocks]
        lower_contents = node.contents[num_blocks:]

    node.set_run(node.tokens[cut:].copy(), node.block_ids[num_blocks:].copy())
    node.contents = lower_contents
    node.start += cut
    node.parent = upper
    node.key = (node.readers, node.block_bytes(0, block_size))
    node.is_attached = True
    upper.children = {node.key: node}
    file_child(upper, node)
    node.readers.num_nodes += 1
    return upper


def merge(node: Node) -> Node | None:
    """Join ``node`` with its only child if nothing tells them apart; return the child.

    A count equal to the child's means that no lease ends between them, equal marks that
    no approval does. Both must be kept for as long, and as dearly. O(run).
    """
    parent, children = node.parent, node.children
    if parent is None or not children or len(children) > 1 or node.num_partial:
        return None
    (child,) = children.values()
    if (
        child.readers is not node.readers
        or child.count != node.count
        or child.marks != node.marks
        or child.users != node.users
        or not are_kept_alike(node, child)
        or not _are_used_alike(node, child)
        or node.tombstones is not None
        or node.is_freed
    ):
        return None
    contents = None
    if node.contents is not None and len(node.contents) == node.num_blocks:
        contents = node.contents + (child.contents or [])
    if (
        node.cohort is not None
        and child.cohort is not None
        and (node.cohort is not child.cohort)
    ):
        node.cohort.leave(node.num_blocks)
        child.cohort.join(node.num_blocks)
    share = node.num_blocks / (node.num_blocks + child.num_blocks)
    child.published_at += share * (node.published_at - child.published_at)
    child.set_run(
        np.concatenate([node.tokens, child.tokens]),
        np.concatenate([node.block_ids, child.block_ids]),
    )
    child.contents = contents
    child.start = node.start
    child.parent = parent
    child.created_at = min(child.created_at, node.created_at)
    child.last_used_at = max(child.last_used_at, node.last_used_at)
    child.num_hits = max(child.num_hits, node.num_hits)
    child.num_forks = max(child.num_forks, node.num_forks)
    child.wanted_until = max(child.wanted_until, node.wanted_until)
    child.is_attached = node.is_attached
    _take_place(parent, node, child)
    node.is_freed = True
    node.is_attached = False
    node.readers.num_nodes -= 1
    return child


def _are_used_alike(node: Node, child: Node) -> bool:
    """Whether nothing that is learned tells two nodes apart.

    Of what many requests begin with, only how many did counts, so that one who asks for
    every prefix of a long text does not leave it in pieces.
    """
    one, other = node.cohort, child.cohort
    if one is None and other is None and node.last_used_at != child.last_used_at:
        # An order by last use would take the tail for as young as what was used without it.
        return False
    if one is other:
        return bool(node.num_forks) == bool(child.num_forks)
    return (
        one is not None
        and other is not None
        and one.kind == other.kind
        and node.num_forks > 0
        and child.num_forks > 0
    )


def _take_place(parent: Node, old: Node, new: Node) -> None:
    new.key = old.key
    if new.is_attached and parent.children is not None and new.key is not None:
        parent.children[new.key] = new
        swap_child(parent, old, new)
    entries = old.readers.entries
    if old in entries:
        entries.discard(old)
        entries.add(new)
