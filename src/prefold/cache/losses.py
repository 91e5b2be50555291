"""Losses: what is known of what was lost where a match ends."""

from __future__ import annotations

from collections.abc import Sequence

from prefold.blocks.table import TokenIds
from prefold.identity.domain import Audience
from prefold.tree.loss import LossCause, Tombstone
from prefold.tree.node import Node
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.walk import Endpoint, View


def find_loss(
    tree: PrefixTree,
    view: View,
    audiences: Sequence[Audience],
    ends: Sequence[Endpoint],
    tokens: TokenIds,
) -> Tombstone | None:
    """Return what was lost of the first block after ``ends``; None if nothing is known.

    A few look-ups for each end and audience.

    Args:
        tree: Where it was.
        view: What the request sees of it.
        audiences: Whose KV the request reads, wide to narrow.
        ends: Where its match ends.
        tokens: Its prompt.
    """
    size = tree.block_size
    for end in ends:
        begin = end.position * size
        if len(tokens) < begin + size:
            continue
        first = tokens[begin : begin + size].tobytes()
        if end.is_node_end:
            found = _hanging(tree, view, end.node, first)
            if found is not None:
                return found
        before = tokens[max(begin - size, 0) : begin].tobytes()
        for audience in audiences:
            grave = tree.audiences.graves.find(audience, begin, before, first)
            if grave is not None:
                return _invalidated(grave.at, grave.selector, 0)
    return None


def _hanging(tree: PrefixTree, view: View, node: Node, first: bytes) -> Tombstone | None:
    """Return what is hung there, or will be once somebody has noticed."""
    for readers in view.readable:
        key = (readers, first)
        tombstone = (node.tombstones or {}).get(key)
        if tombstone is not None:
            return tombstone
        child = (node.children or {}).get(key)
        if child is None:
            continue
        if child.created_at < view.born_after:
            cut = tree.audiences.cut
            at, selector = (0.0, None) if cut is None else (cut.at, cut.selector)
            return _invalidated(at, selector, child.num_blocks)
        if child.is_expired(view.now):
            return _over(LossCause.EXPIRED, child.expires_at, child)
        if child.marks and not view.is_open(child):
            ended_at = max(mark.expires_at for mark in child.marks)
            return _over(LossCause.LAPSED, ended_at, child)
    return None


def _invalidated(at: float, selector: str | None, num_blocks: int) -> Tombstone:
    return Tombstone(
        at=at,
        cause=LossCause.INVALIDATED,
        policy=None,
        selector=selector,
        num_blocks=num_blocks,
    )


def _over(cause: LossCause, at: float, node: Node) -> Tombstone:
    return Tombstone(at=at, cause=cause, policy=None, num_blocks=node.num_blocks)
