"""Prefix ends: where a prompt leads in the tree, for every audience at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefold.blocks.table import TokenIds
from prefold.cache.children import is_there
from prefold.tree.node import Node, Readers
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.walk import common_prefix


class PrefixEnds:
    """Follows a prompt from the root along every path that begins with it.

    Unlike a request's walk it has no reader: whatever is there, it goes on through.

    Attributes:
        is_complete: Whether the last search looked at all it had to.
    """

    __slots__ = ("_max_looked_at", "_now", "_readers", "_tree", "is_complete")

    def __init__(
        self,
        tree: PrefixTree,
        readers: Sequence[Readers],
        now: float,
        *,
        max_looked_at: int,
    ) -> None:
        """Look at the runs of some audiences, as they are at a moment.

        Args:
            tree: Where.
            readers: Whose runs are looked at.
            now: On the cache's clock.
            max_looked_at: Look-ups of children at most.
        """
        self._tree = tree
        self._readers = readers
        self._now = now
        self._max_looked_at = max_looked_at
        self.is_complete = True

    def of(self, token_ids: TokenIds) -> list[tuple[Node, int]]:
        """Return the ends of all paths, and how many tokens agree up to there.

        A path ends in the run where the prompt ends or parts from it, and where nothing
        of the same readers goes on with it. O(runs passed, times audiences).
        """
        found: list[tuple[Node, int]] = []
        pending = [self._tree.root]
        looked_at = 0
        self.is_complete = True
        while pending:
            node = pending.pop()
            looked_at += len(self._readers)
            if looked_at > self._max_looked_at:
                self.is_complete = False
                break
            goes_on = node.is_root
            for child in self._going_on(node, token_ids[node.end :]):
                goes_on = goes_on or child.readers is node.readers
                agreed = common_prefix(child.tokens, token_ids[child.start :])
                if agreed == child.num_tokens and child.end < len(token_ids):
                    pending.append(child)
                else:
                    found.append((child, child.start + agreed))
            if not goes_on:
                found.append((node, node.end))
        return found

    def _going_on(self, node: Node, rest: TokenIds) -> Iterator[Node]:
        """Yield the children that begin as ``rest`` does, by a block or by less."""
        size = self._tree.block_size
        first = rest[:size].tobytes() if len(rest) >= size else None
        for readers in self._readers:
            child = None
            if first is not None:
                child = (node.children or {}).get((readers, first))
            if child is not None and is_there(self._tree, child, self._now):
                yield child
                continue
            listed = (node.inner or {}).get((readers, int(rest[0])), ())
            yield from (each for each in listed if is_there(self._tree, each, self._now))
