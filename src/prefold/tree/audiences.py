"""Audience table: the audiences present in one tree, and which of their epochs live."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from prefold.identity.domain import Audience
from prefold.tree.account import Account
from prefold.tree.graves import Grave, Graves
from prefold.tree.node import Node, Readers


class AudienceTable:
    """Present epochs by audience, and the age from which on nothing lives.

    Raising an epoch is O(1): the old ``Readers`` is retired, and every key made with it
    is unreachable from then on. So is an age cut-off: one number, which every walk
    compares. Owned by one tree.

    Attributes:
        born_after: Nodes made before this time are dead.
        cut: What set that time; None while nothing did.
        graves: Where audiences whose epoch was raised had begun.
    """

    __slots__ = (
        *("_account_of", "_epoch", "_present", "_tree_id"),
        *("born_after", "cut", "graves"),
    )

    def __init__(self, tree_id: int, account_of: Callable[[Audience], Account]) -> None:
        self._tree_id = tree_id
        self._account_of = account_of
        self._epoch = 0
        self.born_after = -math.inf
        self.cut: Grave | None = None
        self.graves = Graves()
        self._present: dict[Audience, Readers] = {}

    def present(self) -> list[Readers]:
        return list(self._present.values())

    def readable(self, audiences: Sequence[Audience]) -> list[Readers]:
        """Return those of ``audiences`` that have anything here, in the same order."""
        found = (self._present.get(audience) for audience in audiences)
        return [readers for readers in found if readers is not None]

    def of(self, audience: Audience) -> Readers:
        """Return an audience's present epoch, made if there is none."""
        readers = self._present.get(audience)
        if readers is None:
            readers = self._present[audience] = Readers(
                audience, self._tree_id, self._epoch, self._account_of(audience)
            )
        return readers

    def is_present(self, readers: Readers) -> bool:
        return not readers.is_retired and readers.tree_epoch == self._epoch

    def enter(self, node: Node) -> None:
        """Note that an audience has a new node, even if it was just found empty."""
        readers, parent = node.readers, node.parent
        readers.num_nodes += 1
        if self.is_present(readers):
            self._present[readers.audience] = readers
        if parent is not None and (parent.readers is not readers or parent.is_root):
            readers.entries.add(node)
            self.graves.fill(node)

    def forget_if_empty(self, readers: Readers) -> None:
        """Drop an audience with nothing here, so that one-off salts leave nothing behind.

        Its tombstones count: they explain why nothing is left.
        """
        if (
            readers.num_nodes == 0
            and readers.num_tombstones == 0
            and self._present.get(readers.audience) is readers
        ):
            del self._present[readers.audience]

    def retire(self, audience: Audience, grave: Grave | None = None) -> Readers | None:
        """Raise one audience's epoch; None if it has nothing here.

        With a ``grave`` it is remembered what did. O(entries, up to a bound).
        """
        readers = self._present.pop(audience, None)
        if readers is not None:
            readers.is_retired = True
            if grave is not None:
                self.graves.dig(readers.entries, grave)
        return readers

    def retire_all(self, grave: Grave | None = None) -> list[Readers]:
        """Raise the tree's epoch and return what was present, as ``retire`` does."""
        retired = self.present()
        self._epoch += 1
        self._present = {}
        if grave is not None:
            # What only its own request could find, nobody misses.
            its = (readers for readers in retired if not readers.is_throwaway)
            self.graves.dig((entry for each in its for entry in each.entries), grave)
        return retired

    def is_dead(self, node: Node) -> bool:
        """Whether the node itself was invalidated; its ancestors are not looked at."""
        return node.parent is not None and not (
            node.is_attached
            and node.created_at >= self.born_after
            and self.is_present(node.readers)
        )

    def has_old_child(self, node: Node) -> bool:
        """Whether a child was made before ``born_after``."""
        children = (node.children or {}).values()
        return any(child.created_at < self.born_after for child in children)

    def is_doomed(self, node: Node) -> bool:
        """Whether the node or an ancestor is dead. O(depth in nodes)."""
        at: Node | None = node
        while at is not None:
            if self.is_dead(at):
                return True
            at = at.parent
        return False
