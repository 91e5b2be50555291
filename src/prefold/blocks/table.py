"""Block table: where a sequence's token positions lie.

::

    position   0 .. B-1 | B .. 2B-1 | 2B .. 3B-1
    block id      7     |     3     |     12          slot = block id * B + position % B
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import numpy as np
import numpy.typing as npt

from prefold.errors import InvalidInputError, InvariantError

#: Index of a physical block.
BlockId = NewType("BlockId", int)

#: Physical block ids.
BlockIds = npt.NDArray[np.int32]

#: Token ids, one per position.
TokenIds = npt.NDArray[np.int64]

#: What a child key and every comparison of tokens is made of.
TOKEN_DTYPE = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """An order to copy the first ``num_tokens`` positions of one block into another."""

    source: BlockId
    target: BlockId
    num_tokens: int


def check_tokens(tokens: TokenIds, lowest: int = 0) -> None:
    """Refuse what is no sequence's tokens.

    Args:
        tokens: Of one sequence.
        lowest: Negative where contents may stand in place of tokens; see ``ContentIds``.

    Raises:
        InvalidInputError: ``tokens`` is empty, not int64, not one-dimensional, or has one
            below ``lowest``.
    """
    if tokens.ndim != 1 or tokens.dtype != TOKEN_DTYPE:
        raise InvalidInputError(
            f"tokens must be a one-dimensional int64 array, got {tokens.ndim} "
            f"dimensions of {tokens.dtype}"
        )
    if len(tokens) == 0:
        raise InvalidInputError("tokens must not be empty")
    if tokens.min() < lowest:
        raise InvalidInputError("token ids must not be negative")


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks ``num_tokens`` positions need."""
    return -(-num_tokens // block_size)


class BlockTable:
    """One sequence's block ids in order of position; owned by its lease.

    Invariants:
        - no block id stands twice in a table
    """

    __slots__ = ("_ids", "_length")

    def __init__(self, ids: BlockIds) -> None:
        self._ids = ids
        self._length = len(ids)

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> BlockIds:
        """The block ids, as a view that later calls may change."""
        return self._ids[: self._length]

    def append(self, ids: BlockIds) -> None:
        """Add blocks at the end. Amortised O(len(ids))."""
        needed = self._length + len(ids)
        if needed > len(self._ids):
            grown = np.empty(max(needed, 2 * len(self._ids), 8), dtype=np.int32)
            grown[: self._length] = self.ids
            self._ids = grown
        self._ids[self._length : needed] = ids
        self._length = needed

    def replace(self, start: int, ids: BlockIds) -> BlockIds:
        """Put ``ids`` at ``start``, growing if needed, and return those they replaced."""
        end = min(start + len(ids), self._length)
        replaced = self._ids[start:end].copy()
        self._ids[start:end] = ids[: end - start]
        if len(ids) > end - start:
            self.append(ids[end - start :])
        return replaced

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a block id stands twice."""
        if len(np.unique(self.ids)) != self._length:
            raise InvariantError("a block stands twice in one block table")
