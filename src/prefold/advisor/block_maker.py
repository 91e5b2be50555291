"""Block maker: block ids for prompts that have none, a new id for each new prefix."""

from __future__ import annotations

import hashlib

import numpy as np

from prefold.advisor.trace import IdRuns, compress_ids


class BlockMaker:
    """Gives equal beginnings equal ids, in the order in which they come.

    Remembers a digest for every block seen, and nothing of what was in it.
    """

    __slots__ = ("_block_size", "_ids")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # By the id before it (or None) and the digest of what is in the block.
        self._ids: dict[tuple[int | None, bytes], int] = {}

    def runs(self, name: str, content: bytes, bytes_per_token: int) -> IdRuns:
        """Return the ids of the full blocks of ``content``. O(its length).

        Args:
            name: Of what it must not share a block with others of another name.
            content: The prompt.
            bytes_per_token: How many of it are a token; prompts of another number share
                no block either.
        """
        size = self._block_size * bytes_per_token
        ids = []
        before: int | None = None
        # Token ids and texts must not meet, nor may two models.
        seed = f"{bytes_per_token} {name}".encode()
        for begin in range(0, len(content) - size + 1, size):
            digest = hashlib.blake2b(content[begin : begin + size], digest_size=16)
            if before is None:
                digest.update(seed)
            before = self._ids.setdefault((before, digest.digest()), len(self._ids))
            ids.append(before)
        return compress_ids(np.array(ids, dtype=np.int64))
