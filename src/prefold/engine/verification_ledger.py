"""Verification ledger: what a prompt must hit, worked out from token lists alone.

It knows nothing of trees and blocks in memory: it keeps the tokens of everything that was
published, and compares. So it can tell a cache that finds too little or too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prefold.blocks.table import TokenIds

#: Fewer agreeing tokens inside a block are not reused.
_LEAST_COPIED = 4

#: Blocks with one first token, at one place, that are searched for an agreement.
_SEARCHED_SIBLINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedHit:
    """Tokens that a prompt hits: a range only where many prompts begin a block alike."""

    least: int
    most: int

    def nearest(self, num_tokens: int) -> int:
        """Return what comes closest to ``num_tokens`` of what is right."""
        return min(max(num_tokens, self.least), self.most)


class PublishedTokens:
    """Every token list published in one domain, none of them evicted."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._published: list[TokenIds] = []

    def add(self, token_ids: Sequence[int] | TokenIds) -> None:
        """Note tokens whose KV was published, from position 0 on."""
        self._published.append(np.array(token_ids, dtype=np.int64))

    def expect(self, prompt: TokenIds) -> ExpectedHit:
        """Return what ``prompt`` must hit now."""
        wanted = prompt[:-1]
        common = max((_num_common(wanted, each) for each in self._published), default=0)
        size = self._block_size
        whole = common // size * size
        agreed = common - whole
        if agreed < _LEAST_COPIED:
            return ExpectedHit(least=whole, most=whole)
        is_crowded = self._num_siblings(prompt, whole) > _SEARCHED_SIBLINGS
        return ExpectedHit(least=whole if is_crowded else common, most=common)

    def _num_siblings(self, prompt: TokenIds, whole: int) -> int:
        """Count the different blocks behind ``whole`` that begin like the prompt's."""
        start = prompt[: whole + 1]
        return len(
            {
                each[whole : whole + self._block_size].tobytes()
                for each in self._published
                if np.array_equal(each[: whole + 1], start)
            }
        )


def _num_common(one: TokenIds, other: TokenIds) -> int:
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
