"""Trace merging: a trace in larger blocks, several of its own to one.

The merged id stands for all blocks up to its end, so it is as exact as the ids were:
two prompts share it if, and only if, they share everything so far.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from prefold.advisor.block_tree import BlockTree, grow_block_tree
from prefold.advisor.trace import IdRuns, Trace
from prefold.errors import InvalidInputError


def merge_blocks(trace: Trace, num_merged: int) -> Trace:
    """Return the trace with ``num_merged`` consecutive blocks as one, the rest dropped.

    Costs what the trace's block tree does.

    Raises:
        InvalidInputError: ``num_merged`` is below 1.
    """
    if num_merged < 1:
        raise InvalidInputError(f"at least 1 block makes a merged one, got {num_merged}")
    if num_merged == 1:
        return trace
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    return Trace(
        name=trace.name,
        block_size=trace.block_size * num_merged,
        requests=[
            dataclasses.replace(request, runs=runs)
            for request, runs in zip(
                trace.requests, _merged_runs(tree, num_merged), strict=True
            )
        ],
    )


def _merged_runs(tree: BlockTree, num_merged: int) -> list[IdRuns]:
    # A merged block belongs to the run in which it ends; they are numbered run by run.
    ends = tree.depths + tree.lengths
    lengths = ends // num_merged - tree.depths // num_merged
    firsts = np.cumsum(lengths) - lengths
    pairs = np.stack([firsts, lengths], axis=1)
    merged = []
    for path in tree.paths():
        runs = pairs[path]
        runs = runs[runs[:, 1] > 0]
        runs.flags.writeable = False
        merged.append(runs)
    return merged
