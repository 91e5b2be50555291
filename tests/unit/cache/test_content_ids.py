"""Contents that are known: which numbers stay theirs, and which items are forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from prefold.blocks.table import TokenIds
from prefold.cache.contents import MIN_KNOWN, ContentIds
from prefold.errors import InvalidInputError


def digest_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_what_the_cache_holds_keeps_its_numbers_and_the_rest_is_forgotten() -> None:
    cached: list[TokenIds] = []
    contents = ContentIds(lambda: cached)
    held = contents.item(digest_of(0), 3)
    cached.append(np.concatenate([np.arange(4), held.numbers(0, 2)]))
    numbers, loose = contents.numbers_of(digest_of(0)), digest_of(1)
    contents.item(loose, 2)
    del held
    for number in range(2, MIN_KNOWN + 2):
        contents.item(digest_of(number), 1)
        contents.check_invariants()
    assert contents.numbers_of(digest_of(0)) == numbers
    [span] = contents.spans(cached[0])
    assert (span.start, span.end, span.digest, span.offset) == (4, 6, digest_of(0), 0)
    assert contents.numbers_of(loose) is None, "nobody holds it"
    # Once the cache has lost it, and others have come, it is forgotten as well.
    cached.clear()
    contents.forget_unused()
    assert contents.numbers_of(digest_of(0)) is None


def test_an_item_fills_the_same_number_of_positions_every_time() -> None:
    contents = ContentIds(list)
    item = contents.item(digest_of(0), 3)
    assert contents.item(digest_of(0), 3) is item
    for length in (2, 4, 0, -1):
        with pytest.raises(InvalidInputError, match="fills"):
            contents.item(digest_of(0), length)
