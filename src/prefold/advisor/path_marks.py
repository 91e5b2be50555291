"""Path marks: a number for each block of a prompt that stands for all tokens up to its end.

Equal beginnings have equal marks and others almost surely none in common; a mark is as
good as drawn evenly from the 64-bit numbers. So "the mark is below a limit" samples
blocks of *paths*: two prompts with a common beginning have the same blocks of it in the
sample. Nothing is found by a mark and nobody is served by one: they only count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: One number a block, in the order of the path; uint64.
PathMarks = npt.NDArray[np.uint64]

#: An odd number whose multiples spread evenly (Weyl's sequence of the golden ratio).
_STEP = 0x9E3779B97F4A7C15

#: What stands for itself in arithmetic modulo 2^64.
_MASK = 2**64 - 1


def path_marks(block_marks: npt.NDArray[np.int64], seed: int) -> PathMarks:
    """Return the marks of the path whose blocks have these numbers, one after another.

    O(blocks), none of it in Python. The marks are sums modulo 2^64 of what the splitmix
    finalizer (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    2014) makes of the seed and of each block's number and place, finalized once more.

    Args:
        block_marks: A number for each block: its id, or a hash of its tokens.
        seed: Tells paths apart that must not have marks in common, such as those of two
            domains. Who does not know it cannot tell which blocks are sampled.
    """
    places = np.arange(1, len(block_marks) + 1, dtype=np.uint64) * np.uint64(_STEP)
    start = _spread(np.array([seed & _MASK], dtype=np.uint64))
    own = _spread(_spread(block_marks.view(np.uint64)) + places)
    return _spread(np.cumsum(own, dtype=np.uint64) + start)


def _spread(numbers: PathMarks) -> PathMarks:
    """Return a permutation of the 64-bit numbers that looks like chance."""
    mixed = numbers ^ (numbers >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
