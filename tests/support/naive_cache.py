"""Naive cache: what a prefix cache should find, from lists of what was published.

No tree, no blocks, no counts. It knows every prefix of whole blocks that somebody
published and nobody invalidated. What was evicted it cannot know; the test tells it
what is not found any more, and how many blocks that may cost is checked there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Owner = tuple[int, int]
Tokens = tuple[int, ...]

#: As many children with one first token are sure to be compared.
SURELY_COMPARED = 4


@dataclass(frozen=True)
class Expected:
    """What a prompt should find.

    ``agreed`` is how far anything published agrees after the whole blocks; it is
    reached for certain only if ``is_certain``.
    """

    matched: int
    agreed: int
    is_certain: bool


class NaiveCache:
    """Published prefixes by owner: whole blocks, and tails that fill no block."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.whole: defaultdict[Owner, set[Tokens]] = defaultdict(set)
        self.tails: defaultdict[Owner, set[Tokens]] = defaultdict(set)
        # (owner, prefix, first token) below which there were once too many to compare.
        self._crowded: set[tuple[Owner, Tokens, int]] = set()

    def publish(self, owner: Owner, tokens: Sequence[int], computed: int) -> None:
        for end in range(self.block_size, computed + 1, self.block_size):
            self.whole[owner].add(tuple(tokens[:end]))

    def publish_tail(self, owner: Owner, tokens: Sequence[int], computed: int) -> None:
        if computed % self.block_size:
            self.tails[owner].add(tuple(tokens[:computed]))

    def expect(self, owner: Owner, tokens: Sequence[int]) -> Expected:
        """Return what the longest published prefix without the last token gives."""
        size = self.block_size
        matched = 0
        while matched + size < len(tokens) and self.has(owner, tokens[: matched + size]):
            matched += size
        rest = tuple(tokens[matched : matched + size])
        near = {
            block
            for block in self._blocks_after(owner, tuple(tokens[:matched]))
            if rest and block[0] == rest[0]
        }
        agreed = max((_common(block, rest) for block in near), default=0)
        place = (owner, tuple(tokens[:matched]), rest[0]) if rest else None
        return Expected(matched, agreed, place not in self._crowded)

    def note_crowds(self) -> None:
        """Remember where not every child is compared; call it after every change."""
        counts: Counter[tuple[Owner, Tokens, int]] = Counter()
        for owner in self.whole.keys() | self.tails.keys():
            for tokens in self.whole[owner] | self.tails[owner]:
                end = self._last_block(tokens)
                counts[owner, tokens[:end], tokens[end]] += 1
        self._crowded |= {key for key, n in counts.items() if n > SURELY_COMPARED}

    def has(self, owner: Owner, prefix: Sequence[int]) -> bool:
        return tuple(prefix) in self.whole[owner]

    def longest(self, owner: Owner) -> Iterator[Tokens]:
        """Yield the prefixes of whole blocks that no other one begins with."""
        size = self.block_size
        inner = {prefix[:-size] for prefix in self.whole[owner]}
        yield from (prefix for prefix in self.whole[owner] if prefix not in inner)

    def forget(self, owner: Owner, prefix: Tokens = ()) -> None:
        """Drop everything that begins with ``prefix``."""
        for known in (self.whole[owner], self.tails[owner]):
            known -= {tokens for tokens in known if tokens[: len(prefix)] == prefix}

    def _blocks_after(self, owner: Owner, before: Tokens) -> Iterator[Tokens]:
        for tokens in self.whole[owner] | self.tails[owner]:
            end = self._last_block(tokens)
            if end == len(before) and tokens[:end] == before:
                yield tokens[end:]

    def _last_block(self, tokens: Tokens) -> int:
        return (len(tokens) - 1) // self.block_size * self.block_size


def _common(one: Tokens, other: Tokens) -> int:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
