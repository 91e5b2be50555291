"""Path: what lies between a node and one above it."""

from __future__ import annotations

import numpy as np

from prefold.blocks.table import BlockIds
from prefold.tree.account import Account
from prefold.tree.node import Node


def path_to(node: Node) -> list[Node]:
    """Return the nodes from below the root down to ``node``, it included."""
    path: list[Node] = []
    at = node
    while at.parent is not None:
        path.append(at)
        at = at.parent
    path.reverse()
    return path


def path_ids(node: Node, *, below: Node) -> BlockIds:
    """Return the block ids from under ``below`` down to ``node``'s end, in order."""
    parts = []
    at: Node | None = node
    while at is not None and at is not below:
        parts.append(at.block_ids)
        at = at.parent
    parts.reverse()
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def await_path(node: Node, until: float) -> None:
    """Note that a queued request is about to use everything down to ``node``."""
    for at in path_to(node):
        at.wanted_until = max(at.wanted_until, until)


def count_hit(node: Node) -> None:
    """Note that a lease began by matching everything down to ``node``."""
    for at in path_to(node):
        at.num_hits += 1


def count_user(node: Node, account: Account, now: float) -> None:
    """Note whose request uses everything down to ``node``, of what is not its alone."""
    for at in path_to(node):
        owner = at.readers.account
        if owner.is_shared and account.name not in at.users:
            users = at.users | {account.name}
            owner.holding.move(at.num_blocks, now, at.users, users)
            at.users = users
