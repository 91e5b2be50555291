"""Trace: recorded requests, each a prompt as the ids of its full blocks.

Equal ids at equal positions after equal prefixes mean equal tokens, so a block is known
by its id *and* by all that comes before it. A trace need not say what the tokens were.

::

    tokens     0 .. B-1 | B .. 2B-1 | 2B .. 3B-1 | the rest, fewer than B
    block ids     17    |    18     |     40     | none: it can be no prefix's block
    runs       [17, 2], [40, 1]                    ids that count up, as first and length
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

#: Block ids of one prompt, in order; int64, never negative.
BlockIdArray = npt.NDArray[np.int64]

#: The same as rows of (first id, length); int64, shape (runs, 2).
IdRuns = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRequest:
    """One recorded request.

    Attributes:
        arrival_s: Seconds on the trace's own clock.
        num_prompt_tokens: Tokens of the prompt, those of a last partial block included.
        num_output_tokens: Tokens of the reply; 0 where it is not known.
        runs: The ids of the prompt's full blocks, shape (runs, 2); read only.
        session: What names its conversation, where that is known.
        tenant: What names its tenant, where that is known.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    runs: IdRuns = field(repr=False)
    session: str | None = None
    tenant: str | None = None

    @property
    def num_blocks(self) -> int:
        """Full blocks of the prompt."""
        return int(self.runs[:, 1].sum())

    def block_ids(self) -> BlockIdArray:
        """Return the ids one by one, in a new array. O(blocks), none of it in Python."""
        return expand_runs(self.runs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in the order of their arrival.

    Attributes:
        name: What it is called in tables.
        block_size: Tokens in a block.
    """

    name: str
    block_size: int
    requests: Sequence[TraceRequest] = field(repr=False)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.requests)


def expand_runs(runs: IdRuns) -> BlockIdArray:
    """Return the ids that ``runs``, shape (runs, 2), stand for, one by one."""
    firsts, lengths = runs[:, 0], runs[:, 1]
    # What an id lacks to its place in the result is the same all through a run.
    offsets = firsts - (np.cumsum(lengths) - lengths)
    return np.repeat(offsets, lengths) + np.arange(lengths.sum(), dtype=np.int64)


def make_runs(pairs: Sequence[Sequence[int]]) -> IdRuns:
    """Return pairs of (first id, length) as a read-only array."""
    runs = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    runs.flags.writeable = False
    return runs


def shift_runs(runs: IdRuns, offset: int) -> IdRuns:
    """Return the runs with ``offset`` added to every id."""
    shifted = runs + np.array([offset, 0], dtype=np.int64)
    shifted.flags.writeable = False
    return shifted


def compress_ids(block_ids: BlockIdArray) -> IdRuns:
    """Return the runs of ids that count up by one."""
    if len(block_ids) == 0:
        return make_runs([])
    begins = np.flatnonzero(np.diff(block_ids, prepend=block_ids[0] - 2) != 1)
    lengths = np.diff(begins, append=len(block_ids))
    runs = np.stack([block_ids[begins], lengths], axis=1)
    runs.flags.writeable = False
    return runs


def cut_runs(runs: IdRuns, num_blocks: int) -> IdRuns:
    """Return the runs of the first ``num_blocks`` ids."""
    ends = np.cumsum(runs[:, 1])
    if len(ends) == 0 or ends[-1] <= num_blocks:
        return runs
    num_kept = int(np.searchsorted(ends, num_blocks, side="left")) + 1
    cut = runs[:num_kept].copy()
    cut[-1, 1] -= ends[num_kept - 1] - num_blocks
    cut = cut[cut[:, 1] > 0]
    cut.flags.writeable = False
    return cut
