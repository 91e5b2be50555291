"""Walk: the longest path a reader may follow for its tokens.

Children are found by (audience, first block's tokens); inside a run, arrays are
compared. So a hit is decided by the tokens themselves, never by a digest, and no
work is done per block in Python: one dict look-up per readable audience and one
array comparison per node.

Audiences only narrow along a path. ``readable`` lists them from wide to narrow, and
a child's must not stand before its parent's.
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
    readable: Sequence[Readers],
    block_size: int,
) -> list[Endpoint]:
    """Return the ends of all longest paths from ``start``, widest audience first.

    Args:
        start: A node's end; its path is taken as matched.
        tokens: The prompt from position 0.
        limit: Blocks of ``tokens`` that may be matched at most.
        readable: Audiences from wide to narrow.
        block_size: Tokens in a block.
    """
    ends: list[Endpoint] = []
    stack = [start]
    while stack:
        end = stack.pop()
        if not ends or end.position > ends[0].position:
            ends = [end]
        elif end.position == ends[0].position:
            ends.append(end)
        node, position = end.node, end.position
        if position >= limit or not node.children or not end.is_node_end:
            continue
        first = tokens[position * block_size : (position + 1) * block_size].tobytes()
        # Narrow ones are pushed first, so that the widest is followed first.
        for rank in range(len(readable) - 1, end.rank - 1, -1):
            child = node.children.get((readable[rank], first))
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
    readable: Sequence[Readers],
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
        for child in _neighbours(end, int(rest[0]), readable):
            theirs = (
                end.node.tokens[end.num_blocks * block_size :]
                if child is None
                else child.tokens
            )
            agreed = common_prefix(theirs[: len(rest)], rest)
            if agreed > (best.num_tokens if best is not None else 0):
                best = Agreement(agreed, end, child)
    return best


def _neighbours(
    end: Endpoint, first_token: int, readable: Sequence[Readers]
) -> list[Node | None]:
    if not end.is_node_end:
        return [None]
    inner = end.node.inner
    if not inner:
        return []
    found: list[Node | None] = []
    for readers in readable[end.rank :]:
        # Most recently used first: of equal agreements it is the likeliest to stay.
        found.extend(reversed(inner.get((readers, first_token), ())))
    return found


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    """Return how many leading tokens of two arrays are equal."""
    length = min(len(one), len(other))
    if length == 0:
        return 0
    differs = np.not_equal(one[:length], other[:length])
    first = int(differs.argmax())
    return first if differs[first] else length
