"""Children: those of a node in an order that pages can go on in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from prefold.cache.browsed import PageCursor
from prefold.tree.node import Node
from prefold.tree.prefix_tree import PrefixTree


def walk_children(
    places: Sequence[tuple[PrefixTree, Node]], cursor: PageCursor | None
) -> Iterator[tuple[PrefixTree, Node, PageCursor]]:
    """Yield children from a cursor on, each with the cursor that goes on after it.

    Newest first; the partial ones of a node after its whole ones. O(1) a child, but for
    skipping to the cursor, which costs nanoseconds a child.

    Args:
        places: Nodes whose children are meant, with their trees.
        cursor: Where to go on; None for the beginning.
    """
    first = 0 if cursor is None else cursor.tree
    for number, (tree, node) in enumerate(places[first:], start=first):
        here = cursor if number == first else None
        if here is None or not here.is_partial:
            whole = (node.children or {}).values()
            # Counted from the oldest one, so that what is added meanwhile moves nothing.
            left = len(whole) if here is None else min(here.index, len(whole))
            for child in islice(reversed(whole), len(whole) - left, None):
                left -= 1
                yield tree, child, PageCursor(tree=number, is_partial=False, index=left)
        behind = here.index if here is not None and here.is_partial else 0
        for child in islice(_partial_leaves(node), behind, None):
            behind += 1
            yield tree, child, PageCursor(tree=number, is_partial=True, index=behind)


def _partial_leaves(node: Node) -> Iterator[Node]:
    if node.num_partial:
        for listed in (node.inner or {}).values():
            yield from (child for child in listed if child.is_partial)


def num_children(node: Node) -> int:
    """Return how many children a node has, dead ones that are not swept included."""
    return len(node.children or ()) + node.num_partial


def is_there(tree: PrefixTree, node: Node, now: float) -> bool:
    """Whether a node, if a path leads there, can be found at a moment."""
    return not tree.audiences.is_dead(node) and not node.is_expired(now)
