"""Dead list: invalidated subtrees, freed a few blocks at a time.

A subtree is dead from the moment its root cannot be reached; freeing it is only
housekeeping, leaves first, whenever somebody needs blocks. Nodes on a lease's path
are passed over: the lease's release frees them.
"""

from __future__ import annotations

from collections.abc import Collection

from prefold.tree.node import Node


class DeadList:
    """The dead subtrees of one tree, as a traversal that can pause anywhere.

    Nodes come out children before parents. A node that died, and was freed by a
    release in between, is skipped.
    """

    __slots__ = ("_prune_at", "_roots", "_stack")

    #: A list shorter than this is not worth pruning.
    MIN_PRUNED = 64

    def __init__(self) -> None:
        self._roots: list[Node] = []
        self._prune_at = self.MIN_PRUNED
        # (node, whether its children were put on the stack already)
        self._stack: list[tuple[Node, bool]] = []

    def __bool__(self) -> bool:
        return bool(self._stack)

    def extend(self, roots: Collection[Node]) -> None:
        """Add the roots of dead subtrees."""
        self._roots.extend(roots)
        self._stack.extend((root, False) for root in roots)
        if len(self._roots) > self._prune_at:
            # Where blocks never run short nobody takes, and the list would only grow.
            self._roots = [root for root in self._roots if not root.is_freed]
            self._stack = [entry for entry in self._stack if not entry[0].is_freed]
            self._prune_at = 2 * len(self._roots) + self.MIN_PRUNED

    def holds_blocks(self) -> bool:
        """Whether any dead subtree is not wholly freed, be it waiting or leased."""
        return any(not root.is_freed for root in self._roots)

    def waiting(self) -> list[Node]:
        """Return the nodes on the list that are not freed yet."""
        return [node for node, _ in self._stack if not node.is_freed]

    def take(self) -> Node | None:
        """Return the next node that can be freed and forget it; None when done."""
        while self._stack:
            node, is_expanded = self._stack.pop()
            if node.is_freed:
                continue
            if not is_expanded and node.has_children:
                self._stack.append((node, True))
                self._stack.extend((child, False) for child in all_children(node))
            elif node.count == 0 and not node.has_children:
                return node
        return None


def all_children(node: Node) -> list[Node]:
    """Return a node's attached children, partial leaves included."""
    children = list(node.children.values()) if node.children else []
    if node.num_partial and node.inner:
        children += [c for listed in node.inner.values() for c in listed if c.is_partial]
    return children
