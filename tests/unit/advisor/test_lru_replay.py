"""LRU replay: the same hits as the real cache, and holdings that add up."""

from __future__ import annotations

import numpy as np
import pytest

from prefold.advisor import Trace, agent_trace, chat_trace, few_shot_trace, grow_block_tree
from prefold.advisor.lru_replay import replay_lru
from prefold.advisor.replay import replay
from prefold.advisor.trace import TraceRequest, compress_ids
from prefold.errors import InvalidInputError
from prefold.eviction.cost import PRIOR

TRACES = [
    chat_trace(seed=1, num_requests=300),
    agent_trace(seed=2, num_requests=150),
    few_shot_trace(seed=3, num_requests=300),
]


def of_prompts(*prompts: list[int], at: list[float] | None = None) -> Trace:
    times = [float(place) for place in range(len(prompts))] if at is None else at
    return Trace(
        name="prompts",
        block_size=16,
        requests=[
            TraceRequest(
                arrival_s=when,
                num_prompt_tokens=16 * len(prompt),
                num_output_tokens=0,
                runs=compress_ids(np.array(prompt, dtype=np.int64)),
            )
            for prompt, when in zip(prompts, times, strict=True)
        ],
    )


def arrivals(trace: Trace) -> list[float]:
    return [request.arrival_s for request in trace.requests]


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.4, 1.0])
def test_it_agrees_with_the_real_cache(trace: Trace, share: float) -> None:
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    num_blocks = max(int(tree.num_blocks * share), 1)
    real = replay(trace, "lru", num_blocks, PRIOR)
    lean = replay_lru(tree, arrivals(trace), num_blocks)
    assert (real.hit_tokens == lean.hit_blocks * trace.block_size).all()
    assert real.num_evicted_blocks == lean.num_evicted_blocks
    assert real.num_uncached == (~lean.is_cached).sum()
    assert lean.run_hits.sum() == lean.hit_blocks.sum()
    assert lean.peak_blocks <= num_blocks


def test_blocks_are_held_from_when_they_come_until_they_go() -> None:
    #   at 0: 1 2 come; at 10: 3 4 come, 2 and 1 go; at 25: the end
    trace = of_prompts([1, 2], [3, 4], [3, 4, 5], at=[0.0, 10.0, 25.0])
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    lean = replay_lru(tree, arrivals(trace), 2)
    assert lean.hit_blocks.tolist() == [0, 0, 0]
    assert lean.is_cached.tolist() == [True, True, False]
    assert lean.num_evicted_blocks == 2
    assert lean.block_s == 2 * 10 + 2 * 15


def test_without_a_limit_nothing_goes() -> None:
    trace = of_prompts([1, 2], [1, 3], [1, 2], at=[5.0, 6.0, 9.0])
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    lean = replay_lru(tree, arrivals(trace))
    assert lean.num_blocks is None
    assert lean.hit_blocks.tolist() == [0, 1, 2]
    assert (lean.peak_blocks, lean.num_evicted_blocks) == (3, 0)
    assert lean.block_s == 2 * 4 + 3


def test_no_requests_and_no_blocks() -> None:
    tree = grow_block_tree([])
    lean = replay_lru(tree, [])
    assert (lean.peak_blocks, lean.block_s) == (0, 0.0)
    with pytest.raises(InvalidInputError, match="at least 1 block"):
        replay_lru(tree, [], 0)
