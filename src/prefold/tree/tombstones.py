"""Tombstones: what was lost below a node, bounded in number.

A tombstone hangs where a later match will stop: on the lowest node that survived,
keyed like the child that is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from prefold.errors import InvariantError
from prefold.tree.loss import Tombstone
from prefold.tree.node import ChildKey, Node, Readers


class Tombstones:
    """All tombstones of one tree, oldest forgotten first.

    Invariants:
        - every tombstone on a node is listed here and the other way round
        - an audience counts those keyed with it
        - there are at most ``limit``
    """

    __slots__ = ("_forget", "_listed", "limit")

    def __init__(self, limit: int, forget: Callable[[Readers], None]) -> None:
        """Make an empty list.

        Args:
            limit: Most tombstones kept.
            forget: Called with an audience whenever it lost a tombstone.
        """
        self.limit = limit
        self._forget = forget
        # A dict keeps insertion order: its first key is the oldest tombstone.
        self._listed: dict[tuple[Node, ChildKey], None] = {}

    def __len__(self) -> int:
        return len(self._listed)

    def put(self, node: Node, key: ChildKey, tombstone: Tombstone) -> None:
        """Hang a tombstone, adding up with one that is already there."""
        if node.tombstones is None:
            node.tombstones = {}
        older = node.tombstones.get(key)
        lost = tombstone.num_blocks + (older.num_blocks if older is not None else 0)
        node.tombstones[key] = replace(tombstone, num_blocks=lost)
        if older is None:
            key[0].num_tombstones += 1
        # Taken out first: adding up makes it the newest.
        self._listed.pop((node, key), None)
        self._listed[node, key] = None
        while len(self._listed) > self.limit:
            self.remove(*next(iter(self._listed)))

    def remove(self, node: Node, key: ChildKey) -> None:
        """Take one down, if it is there."""
        if node.tombstones is None or node.tombstones.pop(key, None) is None:
            return
        del self._listed[node, key]
        if not node.tombstones:
            node.tombstones = None
        key[0].num_tombstones -= 1
        self._forget(key[0])

    def take_all(self, node: Node) -> int:
        """Take all of a node's down and return the blocks they counted."""
        if node.tombstones is None:
            return 0
        lost = sum(tombstone.num_blocks for tombstone in node.tombstones.values())
        for key in list(node.tombstones):
            self.remove(node, key)
        return lost

    def check_invariants(self, nodes: list[Node]) -> None:
        """Raise ``InvariantError`` if the list and the nodes disagree. O(nodes)."""
        hanging = {(node, key) for node in nodes for key in node.tombstones or ()}
        if hanging != self._listed.keys():
            raise InvariantError("tombstones on nodes and in the list differ")
        if len(self._listed) > self.limit:
            raise InvariantError(f"{len(self._listed)} tombstones, limit {self.limit}")
        counted = Counter(key[0] for _, key in hanging)
        for readers in {node.readers for node in nodes} | counted.keys():
            if readers.num_tombstones != counted[readers]:
                raise InvariantError("an audience does not count its tombstones")
