"""Adapted runs: the parts of a tree that an adapter has beside the model's own KV.

An adapter that sets in somewhere in a prompt has no tree of its own. Its positions hold
its numbers, by which they are found.
"""

from __future__ import annotations

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.tree.invalidation import nodes_below
from prefold.tree.node import Node
from prefold.tree.prefix_tree import PrefixTree

#: The lowest and the highest number of a content.
Numbers = tuple[int, int]


def holds(tokens: TokenIds, numbers: Numbers) -> bool:
    """Tell whether any position holds one of the numbers."""
    return _first(tokens, numbers) is not None


def split_off(tree: PrefixTree, numbers: Numbers) -> list[Node]:
    """Return the highest nodes from whose first block on a tree holds the numbers.

    Splits where such a block lies inside a run: what comes before it stays. O(cached
    tokens).
    """
    found: list[Node] = []
    for node in nodes_below(tree, (tree.root,)):
        place = _first(node.tokens, numbers)
        if place is None or _has_above(node, found):
            continue
        if place >= tree.block_size:
            tree.split(node, place // tree.block_size)
        found.append(node)
    return found


def _first(tokens: TokenIds, numbers: Numbers) -> int | None:
    lowest, highest = numbers
    places = np.flatnonzero((tokens >= lowest) & (tokens <= highest))
    return int(places[0]) if len(places) else None


def _has_above(node: Node, found: list[Node]) -> bool:
    """Tell whether a node hangs below one that is found: that goes with it."""
    at = node.parent
    while at is not None and at not in found:
        at = at.parent
    return at is not None
