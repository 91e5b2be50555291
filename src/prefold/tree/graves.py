"""Graves: beginnings of what an epoch took, so that a later miss there can be explained.

Raising an epoch makes any number of runs unreachable at once, and leaves no place to hang
a tombstone for each. What is kept is where the epoch's audience began: of every entry the
hash of its first block, and of the block before it, and nothing that could be read back.
Only explanations use it, so a collision could do no more than name a wrong reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from prefold.errors import InvariantError
from prefold.identity.domain import Audience
from prefold.tree.node import Node

#: Graves of one tree, oldest forgotten first.
MAX_GRAVES = 16_384

#: Entries that one raise of an epoch looks at, so that it stays quick.
MAX_DUG = 4_096


@dataclass(frozen=True, slots=True)
class Grave:
    """What took it.

    Attributes:
        at: When, on the cache's clock.
        selector: What kind of selector.
    """

    at: float
    selector: str


_Key: TypeAlias = tuple[Audience, int, int, int]


class Graves:
    """All graves of one tree. Owned by its audience table.

    Invariant: at most ``limit``.
    """

    __slots__ = ("_by_place", "limit")

    def __init__(self, limit: int = MAX_GRAVES) -> None:
        self.limit = limit
        # A dict keeps insertion order: its first key is the oldest grave.
        self._by_place: dict[_Key, Grave] = {}

    def __len__(self) -> int:
        return len(self._by_place)

    def dig(self, entries: Iterable[Node], grave: Grave) -> None:
        """Remember where an audience began, at most ``MAX_DUG`` of its entries."""
        for _, entry in zip(range(MAX_DUG), entries, strict=False):
            place = _place_of(entry)
            if place is not None:
                # Taken out first: the newest stands last.
                self._by_place.pop(place, None)
                self._by_place[place] = grave
        while len(self._by_place) > self.limit:
            del self._by_place[next(iter(self._by_place))]

    def fill(self, entry: Node) -> None:
        """Forget a grave, because what was lost there is being cached again. O(1)."""
        if self._by_place:
            place = _place_of(entry)
            if place is not None:
                self._by_place.pop(place, None)

    def find(
        self, audience: Audience, start: int, before: bytes, first: bytes
    ) -> Grave | None:
        """Return what took the block ``first`` of an audience, at a position. O(1).

        Args:
            audience: Whose.
            start: Tokens before it.
            before: The block before it, as a key's bytes; empty at the beginning.
            first: The block, in the same way.
        """
        if not self._by_place:
            return None
        return self._by_place.get((audience, start, hash(before), hash(first)))

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if there are too many."""
        if len(self._by_place) > self.limit:
            raise InvariantError(f"{len(self._by_place)} graves, limit {self.limit}")


def _place_of(entry: Node) -> _Key | None:
    parent = entry.parent
    if parent is None or entry.is_partial or entry.num_blocks == 0:
        return None
    # Python's own hash of bytes: keyed anew in every process, so it tells nothing outside.
    size = entry.num_tokens // entry.num_blocks
    before = b"" if parent.is_root else parent.block_bytes(parent.num_blocks - 1, size)
    first = hash(entry.block_bytes(0, size))
    return entry.readers.audience, entry.start, hash(before), first
