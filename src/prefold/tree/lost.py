"""Lost runs: what is remembered of evicted blocks, to notice that they are asked for again.

Of each block eight bytes stay, a hash of its tokens (multilinear, modulo 2^64: Carter and
Wegman, "Universal classes of hash functions", 1979). Nothing is found by them and nobody
is served by them: they only count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefold.blocks.table import TokenIds
from prefold.tree.cohort import Cohort

Marks = npt.NDArray[np.int64]

#: Runs of one tombstone, and blocks of one run; the deepest are forgotten first.
MAX_RUNS = 8
MAX_BLOCKS = 2048


@dataclass(frozen=True, slots=True)
class LostRun:
    """Evicted blocks that were used last in one way.

    Attributes:
        cohort: Those they were used with.
        marks: A number for each block, in order.
        num_forks: Requests that had gone on differently after them.
    """

    cohort: Cohort
    marks: Marks
    num_forks: int = 0


def marks_of(tokens: TokenIds, block_size: int) -> Marks:
    """Return a number for each whole block of ``tokens``. O(tokens)."""
    num_blocks = len(tokens) // block_size
    blocks = tokens[: num_blocks * block_size].reshape(num_blocks, block_size)
    # Any odd numbers do, if they are large and have nothing to do with each other.
    steps = np.arange(1, block_size + 1, dtype=np.uint64)
    factors = (steps * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
    return np.asarray(blocks @ factors.view(np.int64))


def joined(first: LostRun | None, rest: Iterable[LostRun]) -> tuple[LostRun, ...]:
    """Return runs in the order of their path, those of one cohort as one."""
    runs = [] if first is None else [first]
    for run in rest:
        if runs and runs[-1].cohort is run.cohort:
            marks = np.concatenate([runs[-1].marks, run.marks])
            runs[-1] = LostRun(run.cohort, marks[:MAX_BLOCKS], runs[-1].num_forks)
        else:
            runs.append(run)
    return tuple(runs[:MAX_RUNS])


def asked_again(
    runs: Sequence[LostRun], tokens: TokenIds, block_size: int
) -> list[tuple[LostRun, int]]:
    """Return how many leading blocks of each run ``tokens`` go on with. O(tokens)."""
    found: list[tuple[LostRun, int]] = []
    longest = sum(len(run.marks) for run in runs) * block_size
    marks = marks_of(tokens[:longest], block_size)
    at = 0
    for run in runs:
        length = min(len(run.marks), len(marks) - at)
        differs = run.marks[:length] != marks[at : at + length]
        num_equal = int(differs.argmax()) if differs.any() else length
        if num_equal:
            found.append((run, num_equal))
        if num_equal < len(run.marks):
            break
        at += num_equal
    return found
