"""Contents: the negative numbers that stand for images and embeddings in token arrays.

::

    token array   12  7  -1 -2 -3 -4  9          what is compared, and what nodes keep
    span                 [ digest, 0..3 ]        what every key is made of

An item gets as many numbers as it fills positions, once, and no number is ever given
twice. So two numbers are equal exactly if digest and place inside the item are, all 32
bytes of it, and comparing token arrays compares contents as exactly as tokens. The
numbers mean nothing outside one cache: keys are made of the digests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from weakref import WeakValueDictionary

import numpy as np

from prefold.blocks.table import TOKEN_DTYPE, TokenIds, check_tokens
from prefold.errors import InvalidInputError, InvariantError
from prefold.identity.content import ContentSpan

#: Items known before those that nothing refers to any more are looked for.
MIN_KNOWN = 1_024


class ContentItem:
    """One image or embedding that this process knows; alive as long as it is held.

    Attributes:
        digest: 32 bytes.
        first: The number of its first position; the following ones count down.
        length: Positions it fills.
    """

    __slots__ = ("__weakref__", "digest", "first", "length")

    def __init__(self, digest: bytes, first: int, length: int) -> None:
        self.digest = digest
        self.first = first
        self.length = length

    def numbers(self, start: int, end: int) -> TokenIds:
        """Return what stands for its positions ``start`` to ``end`` - 1."""
        return np.arange(self.first - start, self.first - end, -1, dtype=TOKEN_DTYPE)


class ContentIds:
    """The items of one cache. One thread.

    Whoever keeps token arrays outside the cache, such as a request, holds its items.
    What only the cache has is found by looking through the nodes, each time that twice
    as much is known as was in use the last time. An item that is forgotten and comes
    again gets other numbers: a miss, never a wrong hit.

    Args:
        used: Returns the token arrays of the cache.

    Invariants: items overlap in no number; those kept are among those known.
    """

    __slots__ = ("_by_digest", "_by_place", "_kept", "_limit", "_next", "_places", "_used")

    def __init__(self, used: Callable[[], Iterable[TokenIds]]) -> None:
        self._used = used
        self._next = -1
        self._limit = MIN_KNOWN
        self._by_digest: WeakValueDictionary[bytes, ContentItem] = WeakValueDictionary()
        #: By the first number's distance from zero, as are the ascending places.
        self._by_place: WeakValueDictionary[int, ContentItem] = WeakValueDictionary()
        self._places: list[int] = []
        self._kept: dict[bytes, ContentItem] = {}

    def item(self, digest: bytes, length: int) -> ContentItem:
        """Return the item of a digest, a new one if it is not known. O(1), amortised.

        Raises:
            InvalidInputError: It fills no position, or another number than before.
        """
        if length < 1:
            raise InvalidInputError(f"an item fills at least 1 position, got {length}")
        known = self._by_digest.get(digest)
        if known is None:
            if len(self._kept) >= self._limit:
                self.forget_unused()
            known = ContentItem(digest, self._next, length)
            self._next -= length
            self._by_digest[digest] = known
            self._by_place[-known.first] = known
            self._places.append(-known.first)
            self._kept[digest] = known
        elif known.length != length:
            raise InvalidInputError(
                f"an item fills {known.length} positions, not {length}: what decides on "
                "their number must be part of its digest"
            )
        return known

    def numbers_of(self, digest: bytes) -> tuple[int, int] | None:
        """Return the lowest and the highest number of an item; None if it is not known."""
        item = self._by_digest.get(digest)
        return None if item is None else (item.first - item.length + 1, item.first)

    def number(self, tokens: TokenIds, spans: Iterable[ContentSpan]) -> list[ContentItem]:
        """Write items into a token array; return them, to be held as long as it is.

        Args:
            tokens: Changed in place.
            spans: Of all that each item fills.
        """
        spans = tuple(spans)
        lengths: dict[bytes, int] = {}
        for span in spans:
            end = span.offset + span.end - span.start
            lengths[span.digest] = max(lengths.get(span.digest, 0), end)
        items = {digest: self.item(digest, length) for digest, length in lengths.items()}
        for span in spans:
            end = span.offset + span.end - span.start
            tokens[span.start : span.end] = items[span.digest].numbers(span.offset, end)
        return list(items.values())

    def spans(self, tokens: TokenIds) -> tuple[ContentSpan, ...]:
        """Return what fills the positions that hold no token. O(tokens).

        Raises:
            InvalidInputError: A number was never given out, or is forgotten.
        """
        filled = np.flatnonzero(tokens < 0)
        if len(filled) == 0:
            return ()
        # A span ends where positions or numbers do not go on by one.
        breaks = (np.diff(filled) != 1) | (np.diff(tokens[filled]) != -1)
        starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(filled)]
        spans: list[ContentSpan] = []
        for begin, end in pairwise(starts):
            at, stop = int(filled[begin]), int(filled[end - 1]) + 1
            while at < stop:
                # The numbers of two items may follow one another.
                item = self._owner(int(tokens[at]))
                offset = item.first - int(tokens[at])
                last = min(stop, at + item.length - offset)
                spans.append(ContentSpan(at, last, item.digest, offset))
                at = last
        return tuple(spans)

    def check(self, tokens: TokenIds) -> None:
        """Refuse what is no sequence's tokens.

        Raises:
            InvalidInputError: As ``check_tokens``, but for numbers given out here.
        """
        check_tokens(tokens, lowest=self._next + 1)

    def forget_unused(self) -> None:
        """Forget what neither the cache nor anybody else refers to. O(cached tokens)."""
        places: set[int] = set()
        for tokens in self._used():
            numbers = -tokens[tokens < 0]
            found = np.searchsorted(self._places, np.unique(numbers), side="right") - 1
            places.update(self._places[index] for index in np.unique(found).tolist())
        self._kept = {
            digest: item for digest, item in self._kept.items() if -item.first in places
        }
        self._places = sorted(self._by_place.keys())
        self._limit = max(MIN_KNOWN, 2 * len(self._kept))

    def _owner(self, number: int) -> ContentItem:
        index = bisect_right(self._places, -number) - 1
        item = self._by_place.get(self._places[index]) if index >= 0 else None
        if item is None or item.first - number >= item.length:
            raise InvalidInputError("a position holds neither a token nor a known content")
        return item

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if items overlap or are known in one way only."""
        items = sorted(self._by_place.values(), key=lambda item: -item.first)
        for item, following in pairwise(items):
            if item.first - item.length < following.first:
                raise InvariantError("two contents have a number in common")
        if items and items[-1].first - items[-1].length < self._next:
            raise InvariantError("a content has numbers that were not given out")
        if set(items) != set(self._by_digest.values()):
            raise InvariantError("contents are known by digest or by number alone")
        if not set(self._kept.values()) <= set(items):
            raise InvariantError("a content is kept and not known")
        if not {-item.first for item in items} <= set(self._places):
            raise InvariantError("a content cannot be found by its numbers")
        if self._places != sorted(set(self._places)):
            raise InvariantError("the places of contents are out of order")
