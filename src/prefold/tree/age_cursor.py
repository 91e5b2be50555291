"""Age cursor: how far the search for nodes that became too old has got.

An age cut-off takes effect at once, since every walk compares it. Unlinking what it
made dead, so that its blocks are the first to go, is housekeeping: some nodes a call.
"""

from __future__ import annotations

from prefold.tree.node import Node


class AgeCursor:
    """Nodes of one tree whose subtrees are still to be searched. Owned by the tree."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[Node] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def restart(self, pending: list[Node]) -> None:
        """Search below these nodes, and nowhere else."""
        self._pending = pending

    def note_merge(self, child: Node) -> None:
        """Search below a node that took the place of one that was perhaps pending."""
        if self._pending:
            self._pending.append(child)

    def take(self) -> Node | None:
        """Return a node that is still in the tree and forget it; None when done."""
        while self._pending:
            node = self._pending.pop()
            if node.is_attached and not node.is_freed:
                return node
        return None

    def add(self, nodes: list[Node]) -> None:
        """Search below these nodes as well."""
        self._pending.extend(nodes)
