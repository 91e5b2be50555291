"""Running sequences for cache tests: a lease, its tokens, and what was computed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.cache import Access, Lease
from support.naive_cache import Owner
from support.slots import Marks, marks_of


@dataclass(eq=False)
class Running:
    """One sequence as an engine would keep it.

    ``known`` is what the cache was last given of its tokens; ``is_doomed`` is what the
    test says of it, not the cache.
    """

    lease: Lease
    owner: Owner
    tokens: list[int]
    access: Access
    computed: int
    known: list[int] = field(default_factory=list)
    is_doomed: bool = False

    def __post_init__(self) -> None:
        self.known = list(self.tokens)

    @property
    def publishes(self) -> bool:
        return self.access.write and not self.is_doomed

    @property
    def array(self) -> TokenIds:
        return as_tokens(self.tokens)

    @property
    def marks(self) -> Marks:
        return marks_of(self.owner, self.tokens)


def as_tokens(tokens: list[int] | tuple[int, ...] | range) -> TokenIds:
    return np.array(tokens, dtype=np.int64)
