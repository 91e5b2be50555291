"""Sidecar: log-probabilities of cached prompt tokens, kept beside their KV.

KV holds no logits, so a request that wants the log-probabilities of its prompt cannot
take them from a hit. What such requests have computed is kept per block::

    block      |  KV of 16 tokens  |      log-probability of each token, given
    sidecar    |  16 rows, or fewer |  <- everything before it, and the likeliest others

and another one matches as far as rows are there, less one token: the first token whose
row is missing needs the logits of the token before it. A row belongs to the use of a
block in which it was written, and dies with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prefold.blocks.table import BlockIds, TokenIds
from prefold.cache import PrefixCache
from prefold.cache.survey import FoundBlocks
from prefold.engine.logprobs import LogprobRows, TokenLogprob, to_logprobs
from prefold.errors import InvariantError

#: Alternatives that are kept of every token.
SIDECAR_WIDTH = 5


class PromptLogprobs:
    """The log-probabilities of one request's prompt, as far as they are known.

    Owned by its sequence; kept while that is preempted.

    Attributes:
        width: Alternatives that are known of every token.
        num_known: Leading tokens whose row is known. The first one has none to know.
    """

    __slots__ = ("chosen", "num_known", "num_tokens", "top", "top_ids", "width")

    def __init__(self, num_tokens: int, width: int) -> None:
        self.num_tokens = num_tokens
        self.width = width
        self.num_known = 1
        self.chosen = np.zeros(num_tokens, dtype=np.float32)
        self.top_ids = np.zeros((num_tokens, width), dtype=np.int32)
        self.top = np.zeros((num_tokens, width), dtype=np.float32)

    @property
    def is_complete(self) -> bool:
        return self.num_known >= self.num_tokens

    @property
    def limit(self) -> int | None:
        """Leading tokens whose KV may be taken from the cache; None for all."""
        return None if self.is_complete else self.num_known - 1

    def add(self, start: int, rows: LogprobRows) -> None:
        """Take in the rows of the tokens at ``start`` and on.

        Raises:
            InvariantError: Rows before ``start`` are missing.
        """
        if start > self.num_known:
            raise InvariantError("prompt log-probabilities have a gap")
        end = min(start + len(rows.chosen), self.num_tokens)
        count = end - start
        if count <= 0:
            return
        self.chosen[start:end] = rows.chosen[:count]
        self.top_ids[start:end] = rows.top_ids[:count]
        self.top[start:end] = rows.top[:count]
        self.num_known = max(self.num_known, end)

    def to_values(self, tokens: TokenIds, width: int) -> tuple[TokenLogprob | None, ...]:
        """Return what is known, with at most ``width`` alternatives a token."""
        known = slice(1, self.num_known)
        rows = LogprobRows(
            chosen=self.chosen[known], top_ids=self.top_ids[known], top=self.top[known]
        )
        return (None, *to_logprobs(rows, tokens[known], width))

    def copy(self) -> PromptLogprobs:
        """Return an independent one that knows as much."""
        twin = PromptLogprobs(self.num_tokens, self.width)
        twin.num_known = self.num_known
        twin.chosen[:] = self.chosen
        twin.top_ids[:] = self.top_ids
        twin.top[:] = self.top
        return twin


class Sidecar:
    """The rows of all blocks of one cache. Owned by the engine; one thread.

    Memory is taken as rows are written. Reading and writing cost O(blocks).

    Args:
        cache: Whose blocks.
        vocab_size: Of the model: no more alternatives than that are kept.

    Invariants:
        - no block has more rows than tokens
    """

    __slots__ = ("_cache", "_chosen", "_filled", "_stamps", "_top", "_top_ids", "width")

    def __init__(self, cache: PrefixCache, vocab_size: int) -> None:
        self.width = min(SIDECAR_WIDTH, vocab_size)
        self._cache = cache
        self._filled = np.zeros(cache.num_blocks, dtype=np.int32)
        self._stamps = np.zeros(cache.num_blocks, dtype=np.int64)
        shape = (cache.num_blocks, cache.block_size)
        # Pages of zeros that nobody has written to take no memory.
        self._chosen = np.zeros(shape, dtype=np.float32)
        self._top_ids = np.zeros((*shape, self.width), dtype=np.int32)
        self._top = np.zeros((*shape, self.width), dtype=np.float32)

    @property
    def num_rows(self) -> int:
        """Rows that are kept at this moment. O(blocks of the pool)."""
        return int(self._rows_of(np.arange(self._cache.num_blocks, dtype=np.int32)).sum())

    def recall(self, known: PromptLogprobs, found: FoundBlocks) -> None:
        """Add the rows that are kept with the blocks of a prompt's match to ``known``."""
        size = self._cache.block_size
        num_rows = self._rows_of(found.block_ids)
        partial = np.flatnonzero(num_rows < size)
        num_whole = int(partial[0]) if len(partial) else len(num_rows)
        reach = num_whole * size
        if num_whole < len(num_rows):
            reach += int(num_rows[num_whole])
        reach = min(reach, found.num_tokens, known.num_tokens)
        if reach <= known.num_known:
            return
        ids = found.block_ids[: -(-reach // size)]
        rows = LogprobRows(
            chosen=self._chosen[ids].reshape(-1)[:reach],
            top_ids=self._top_ids[ids].reshape(-1, self.width)[:reach],
            top=self._top[ids].reshape(-1, self.width)[:reach],
        )
        known.add(0, rows)

    def keep(
        self, known: PromptLogprobs, block_ids: BlockIds, start: int, end: int
    ) -> None:
        """Keep the rows of the blocks that hold positions ``start`` to ``end`` - 1.

        Args:
            known: With the rows of all tokens before ``end``, as far as the prompt goes.
            block_ids: The sequence's, from position 0; their KV was computed to ``end``.
            start: First position that was computed in this step.
            end: The position behind the last one.
        """
        size = self._cache.block_size
        end = min(end, known.num_known)
        for index in range(start // size, -(-end // size)):
            first = index * size
            count = min(size, end - first)
            block_id = int(block_ids[index])
            ids = block_ids[index : index + 1]
            if int(self._rows_of(ids)[0]) >= count:
                continue
            self._chosen[block_id, :count] = known.chosen[first : first + count]
            self._top_ids[block_id, :count] = known.top_ids[first : first + count]
            self._top[block_id, :count] = known.top[first : first + count]
            self._filled[block_id] = count
            self._stamps[block_id] = self._cache.generations[block_id]

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a block has more rows than tokens."""
        if ((self._filled < 0) | (self._filled > self._cache.block_size)).any():
            raise InvariantError("a block has more log-probabilities than tokens")
        if (self._stamps > self._cache.generations).any():
            raise InvariantError("log-probabilities belong to a use yet to come")

    def _rows_of(self, ids: BlockIds) -> npt.NDArray[np.int32]:
        is_current = self._stamps[ids] == self._cache.generations[ids]
        return np.where(is_current, self._filled[ids], 0)
