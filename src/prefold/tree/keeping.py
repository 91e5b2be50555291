"""Keeping: how the wishes of the requests that use a node become the node's own.

Nodes of approved prefixes are left alone: they are kept as their approval says.
"""

from __future__ import annotations

from prefold.tree.node import Node
from prefold.tree.retention import Retention


def begin_keeping(node: Node, now: float, retention: Retention) -> None:
    """Keep a new node as its writer wishes."""
    if not node.readers.is_approved:
        node.expires_at = now + retention.ttl_s
        node.priority = retention.priority


def touch(node: Node, now: float, retention: Retention) -> None:
    """Note that a lease came or went: the longest time and the highest priority hold."""
    node.last_used_at = now
    if not node.readers.is_approved:
        node.expires_at = max(node.expires_at, now + retention.ttl_s)
        node.priority = max(node.priority, retention.priority)


def is_kept_alike(node: Node, now: float, retention: Retention) -> bool:
    """Whether what is appended to a node's run would be kept as its writer wishes."""
    if node.readers.is_approved:
        return True
    return node.priority == retention.priority and node.expires_at <= now + retention.ttl_s


def are_kept_alike(one: Node, other: Node) -> bool:
    """Whether two nodes may be one, as far as their keeping goes."""
    return (
        one.expires_at == other.expires_at
        and one.priority == other.priority
        and one.is_ended == other.is_ended
    )


def end_conversation(node: Node, tail: Node | None) -> list[Node]:
    """Note that nothing is expected below, up to where others go on. O(depth in nodes).

    Until it is used again, it goes before everything else of its account. Returns the
    nodes that this concerns; those that can be evicted are to be ranked anew.

    Args:
        node: Where the conversation's whole blocks end.
        tail: Its partial leaf, if it has one.
    """
    ended = [] if tail is None else [tail]
    num_own = len(ended)
    at = node
    while (
        at.parent is not None
        and not at.readers.is_approved
        and at.count == 0
        and len(at.children or ()) + at.num_partial == num_own
    ):
        ended.append(at)
        at, num_own = at.parent, 1
    for each in ended:
        each.is_ended = True
    return ended
