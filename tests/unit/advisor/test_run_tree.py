"""The run tree: the same tree as from single ids, whatever the runs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import BlockTree, agent_trace, chat_trace, grow_block_tree
from prefold.advisor.run_tree import grow_run_tree
from prefold.advisor.trace import Trace, compress_ids

#: Few ids, so that prompts begin alike, and counting up as often as not.
PROMPTS = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8)


def shape(tree: BlockTree) -> list[list[tuple[int, int]]]:
    """Return each prompt as the depths and lengths of its runs: numbers may differ."""
    return [
        [(int(tree.depths[run]), int(tree.lengths[run])) for run in path.tolist()]
        for path in tree.paths()
    ]


def shared(tree: BlockTree) -> list[list[int]]:
    """Return how many runs each two prompts have in common."""
    paths = [set(path.tolist()) for path in tree.paths()]
    return [[len(ours & theirs) for theirs in paths] for ours in paths]


@given(PROMPTS)
def test_it_is_the_tree_of_single_ids(prompts: list[list[int]]) -> None:
    arrays = [np.array(prompt, dtype=np.int64) for prompt in prompts]
    ours, theirs = grow_run_tree(map(compress_ids, arrays)), grow_block_tree(arrays)
    assert ours.num_blocks == theirs.num_blocks
    assert len(ours.parents) == len(theirs.parents)
    assert shape(ours) == shape(theirs)
    assert shared(ours) == shared(theirs)


def test_it_is_so_for_traces() -> None:
    for trace in (
        chat_trace(seed=1, num_requests=80),
        agent_trace(seed=1, num_requests=40),
    ):
        ours = grow_run_tree(request.runs for request in trace.requests)
        theirs = grow_block_tree(request.block_ids() for request in trace.requests)
        assert shape(ours) == shape(theirs)
        assert shared(ours) == shared(theirs)


def test_runs_are_joined_across_ids_that_do_not_count_up() -> None:
    prompt = compress_ids(np.array([7, 3, 4, 90], dtype=np.int64))
    tree = grow_run_tree([prompt, prompt])
    assert tree.lengths.tolist() == [0, 4]
    assert tree.ends.tolist() == [1, 1]


def test_no_prompts() -> None:
    tree = grow_run_tree(
        request.runs for request in Trace(name="", block_size=1, requests=[]).requests
    )
    assert (tree.num_blocks, len(tree.parents), len(tree.ends)) == (0, 1, 0)
