"""Block size of a trace: told from how many ids its prompts have for their tokens.

A prompt of n tokens has an id for each full block, or one more for a last partial block:
``n // B`` or ``n / B`` rounded up. Traces keep to one of the two, and every prompt narrows
what B can be.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from prefold.errors import InvalidInputError

_Ints = npt.NDArray[np.int64]

#: What anybody uses. Other sizes have to be said.
_USUAL = tuple(2**power for power in range(13))
#: Rows may be odd for reasons of their own; that many have to agree.
_MIN_AGREEMENT = 0.95


def detect_block_size(num_tokens: Sequence[int], num_ids: Sequence[int]) -> int | None:
    """Return the tokens per block of prompts with so many tokens and ids each.

    ``None`` if no usual size, a power of two up to 4096, or more than one agrees.
    """
    tokens, ids = np.array(num_tokens), np.array(num_ids)
    shares = {size: _agreement(tokens, ids, size) for size in _USUAL}
    best = max(shares.values())
    found = [size for size, share in shares.items() if share == best]
    return found[0] if best >= _MIN_AGREEMENT and len(found) == 1 else None


def check_block_size(
    num_tokens: Sequence[int], num_ids: Sequence[int], block_size: int
) -> None:
    """Refuse a size that most prompts speak against.

    Raises:
        InvalidInputError: Fewer than half of them can have blocks of that size.
    """
    tokens, ids = np.array(num_tokens), np.array(num_ids)
    share = _agreement(tokens, ids, block_size)
    if share < 0.5:
        raise InvalidInputError(
            f"blocks of {block_size} tokens do not fit: only {share:.0%} of the prompts "
            "have as many block ids as their tokens would need"
        )


def _agreement(tokens: _Ints, ids: _Ints, size: int) -> float:
    full = tokens // size
    return float(((full == ids) | (-(-tokens // size) == ids)).mean())
