"""Walk: the longest path a reader may follow for its tokens.

Children are found by (audience, first block's tokens); inside a run, arrays are
compared. So a hit is decided by the tokens themselves, never by a digest, and no
work is done per block in Python: one dict look-up per readable audience and one
array comparison per node.

Audiences only narrow along a path. ``readable`` lists them from wide to narrow, and
a child's must not stand before its parent's.

This is where permission is enforced, and the only place. A run that was approved and is
not any more is *transparent*: a walk passes through it to what its reader may read
below, but neither a match nor a copy ends in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.tree.node import Node, Readers

#: Shorter agreements inside a block are not worth a copy.
MIN_COPY_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a path ends: after ``num_blocks`` whole blocks of ``node``'s run.

    Attributes:
        rank: Index of the node's audience among the readable ones.
        position: Blocks from the root to here.
    """

    node: Node
    num_blocks: int
    rank: int
    position: int

    @property
    def is_node_end(self) -> bool:
        return self.num_blocks == self.node.num_blocks


@dataclass(frozen=True, slots=True)
class View:
    """What one request may see of a tree at one moment.

    Attributes:
        readable: Audiences from wide to narrow.
        now: On the cache's clock: what an approval's end is compared with.
        born_after: Nodes made before this time are dead.
        is_approving: Whether it sees also what is not approved, of the one audience it
            has: who approves again must find what is there, or it would stand there twice.
    """

    readable: Sequence[Readers]
    now: float
    born_after: float
    is_approving: bool = False

    def is_open(self, node: Node) -> bool:
        """Whether a match or a copy may end in ``node``, if a path leads there."""
        return (
            not node.readers.is_approved
            or self.is_approving
            or any(mark.is_live(self.now) for mark in node.marks)
        )

    def child(self, node: Node, rank: int, first: bytes) -> Node | None:
        """Return the living child of an audience that begins with a block, or None."""
        child = (node.children or {}).get((self.readable[rank], first))
        return child if child is not None and self._is_living(child) else None

    def _is_living(self, node: Node) -> bool:
        return node.created_at >= self.born_after and not node.is_expired(self.now)

    def has_child_with(self, node: Node, tokens: TokenIds) -> bool:
        """Whether a child that may be copied from begins with these tokens."""
        return any(
            np.array_equal(child.tokens[: len(tokens)], tokens)
            for rank in range(len(self.readable))
            for child in self.listed(node, rank, int(tokens[0]))
        )

    def listed(self, node: Node, rank: int, first_token: int) -> list[Node]:
        """Return the children that may be copied from, most recently used first."""
        found = (node.inner or {}).get((self.readable[rank], first_token), ())
        return [
            child
            for child in reversed(found)
            if self._is_living(child) and self.is_open(child)
        ]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The best agreement inside the first block after an endpoint.

    Attributes:
        num_tokens: Leading tokens that agree.
        endpoint: Below which the block hangs.
        child: The node that begins with the block; None if the block is the next one
            of the endpoint's own run.
    """

    num_tokens: int
    endpoint: Endpoint
    child: Node | None


def longest_paths(
    start: Endpoint,
    tokens: TokenIds,
    limit: int,
    view: View,
    block_size: int,
) -> list[Endpoint]:
    """Return the ends of all longest paths from ``start``, widest audience first.

    Args:
        start: A node's end; its path is taken as matched.
        tokens: The prompt from position 0.
        limit: Blocks of ``tokens`` that may be matched at most.
        view: Who asks.
        block_size: Tokens in a block.
    """
    # Where it starts it is already, whatever became of the approval meanwhile.
    ends = [start]
    stack = [start]
    while stack:
        end = stack.pop()
        if end is not start and view.is_open(end.node):
            if end.position > ends[0].position:
                ends = [end]
            elif end.position == ends[0].position:
                ends.append(end)
        node, position = end.node, end.position
        if position >= limit or not node.children or not end.is_node_end:
            continue
        first = tokens[position * block_size : (position + 1) * block_size].tobytes()
        # Narrow ones are pushed first, so that the widest is followed first.
        for rank in range(len(view.readable) - 1, end.rank - 1, -1):
            child = view.child(node, rank, first)
            if child is not None:
                matched = _common_blocks(child, tokens, position, limit, block_size)
                stack.append(Endpoint(child, matched, rank, position + matched))
    return ends


def _common_blocks(
    child: Node, tokens: TokenIds, position: int, limit: int, block_size: int
) -> int:
    num_blocks = min(child.num_blocks, limit - position)
    begin = position * block_size
    differs = (
        child.tokens[: num_blocks * block_size]
        != tokens[begin : begin + num_blocks * block_size]
    )
    first = int(differs.argmax())
    return first // block_size if differs[first] else num_blocks


def best_agreement(
    ends: Sequence[Endpoint],
    tokens: TokenIds,
    view: View,
    block_size: int,
) -> Agreement | None:
    """Return the longest agreement in the block after any of ``ends``; None for none.

    Only the children an inner map lists are compared, at most four an audience.
    """
    best: Agreement | None = None
    for end in ends:
        rest = tokens[end.position * block_size : (end.position + 1) * block_size]
        if len(rest) == 0:
            continue
        for child in _neighbours(end, int(rest[0]), view):
            theirs = (
                end.node.tokens[end.num_blocks * block_size :]
                if child is None
                else child.tokens
            )
            agreed = common_prefix(theirs[: len(rest)], rest)
            if agreed > (best.num_tokens if best is not None else 0):
                best = Agreement(agreed, end, child)
    return best


def _neighbours(end: Endpoint, first_token: int, view: View) -> list[Node | None]:
    if not end.is_node_end:
        return [None]
    if not end.node.inner:
        return []
    found: list[Node | None] = []
    for rank in range(end.rank, len(view.readable)):
        # Most recently used first: of equal agreements it is the likeliest to stay.
        found.extend(view.listed(end.node, rank, first_token))
    return found


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    """Return how many leading tokens of two arrays are equal."""
    length = min(len(one), len(other))
    if length == 0:
        return 0
    differs = np.not_equal(one[:length], other[:length])
    first = int(differs.argmax())
    return first if differs[first] else length
