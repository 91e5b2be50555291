"""What a replay counts, and what it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from prefold.advisor import (
    CLAIRVOYANT,
    ReplayResult,
    Trace,
    agent_trace,
    replay,
    replay_clairvoyant,
)
from prefold.errors import ConfigError, InvalidInputError
from prefold.eviction.cost import CostFit
from support.traces import make_trace

COST = CostFit(per_step=9.0, per_token=2.0, per_pair=0.5)


def lru(trace: Trace, num_blocks: int) -> ReplayResult:
    return replay(trace, "lru", num_blocks, COST)


def test_hits_are_counted_in_tokens_of_all_prompts() -> None:
    trace = make_trace([[1, 2, 3], [1, 2, 4], [1]], block_size=10)
    longer = dataclasses.replace(trace.requests[0], num_prompt_tokens=39)
    trace = dataclasses.replace(trace, requests=[longer, *trace.requests[1:]])
    result = lru(trace, 8)
    assert result.hit_tokens.tolist() == [0, 20, 10]
    assert (result.num_hit_tokens, result.num_prompt_tokens) == (30, 79)
    assert result.hit_rate == pytest.approx(30 / 79)
    assert (result.num_requests, result.num_uncached) == (3, 0)
    assert (result.num_evictions, result.num_evicted_blocks) == (0, 0)
    assert (result.policy, result.num_blocks) == ("lru", 8)
    with pytest.raises(ValueError, match="read-only"):
        result.hit_tokens[0] = 1


def test_saved_prefill_counts_every_hit_token_at_its_depth() -> None:
    result = lru(make_trace([[1, 2], [1, 2]], block_size=4), 8)
    by_token = [2.0 + 0.5 * depth for depth in range(8)]
    assert result.saved_prefill_ms == pytest.approx(1000 * sum(by_token))


@pytest.mark.parametrize(("block_size", "num_hits"), [(1, 40), (16, 41)])
def test_ranked_by_cost_what_stands_deep_in_tokens_is_kept(
    block_size: int, num_hits: int
) -> None:
    cost = CostFit(per_step=0.0, per_token=2.0, per_pair=0.1)
    begin = list(range(40))
    deep, other = [*begin, 50], [*begin, 51]
    trace = make_trace([deep, other, [60], [61], deep], block_size)
    plain = replay(trace, "value", 43, cost)
    by_cost = replay(trace, "value", 43, cost, ranks_by_cost=True)
    assert plain.hit_tokens.tolist()[-1] == 40 * block_size
    assert by_cost.hit_tokens.tolist()[-1] == num_hits * block_size


def test_the_tail_of_the_oldest_goes_first() -> None:
    result = lru(make_trace([[1, 2, 3], [4, 5], [6], [1, 2, 3]]), 5)
    # Block 3 went for block 6.
    assert result.hit_tokens.tolist() == [0, 0, 0, 32]
    assert result.num_evicted_blocks == 1 + 1


@pytest.mark.parametrize("serve", ["lru", CLAIRVOYANT])
def test_a_prompt_larger_than_the_cache_is_served_beside_it(serve: str) -> None:
    trace = make_trace([[1, 2], [1, 2, 3, 4], [1, 2], [1, 2, 3, 4]])
    result = lru(trace, 3) if serve == "lru" else replay_clairvoyant(trace, 3, COST)
    assert result.hit_tokens.tolist() == [0, 0, 32, 0]
    assert (result.num_uncached, result.num_evicted_blocks) == (2, 0)


def test_equal_ids_after_other_prefixes_are_other_blocks() -> None:
    assert lru(make_trace([[1, 2], [3, 2]]), 4).num_hit_tokens == 0


def test_a_prompt_without_blocks_and_an_empty_trace() -> None:
    assert lru(make_trace([[], [1], []]), 1).num_hit_tokens == 0
    assert replay_clairvoyant(make_trace([[], [1], []]), 1, COST).num_hit_tokens == 0
    assert lru(make_trace([]), 1).hit_rate == 0.0


def test_the_bound_keeps_what_comes_back_soonest() -> None:
    trace = make_trace([[1], [2], [3], [1], [2], [1]])
    assert lru(trace, 2).num_hit_tokens == 16
    assert replay_clairvoyant(trace, 2, COST).num_hit_tokens == 3 * 16
    # A cache that holds each prompt has only one other place for 1 and 2.
    held = replay_clairvoyant(trace, 2, COST, holds_prompts=True)
    assert held.num_hit_tokens == 2 * 16


def test_progress_is_told() -> None:
    told: list[int] = []
    replay(make_trace([[1]] * 200), "lru", 4, COST, on_progress=told.append)
    assert told == sorted(told)
    assert len(told) > 2
    assert told[-1] < 200


def test_equal_replays_are_equal() -> None:
    trace = agent_trace(seed=4, num_requests=300)
    one, other = lru(trace, 2_000), lru(trace, 2_000)
    assert one.num_evicted_blocks > 0
    assert one.hit_tokens.tolist() == other.hit_tokens.tolist()
    assert one.num_evictions == other.num_evictions


def test_what_makes_no_sense_is_refused() -> None:
    trace = make_trace([[1], [2]])
    for num_blocks in (0, -1):
        with pytest.raises(InvalidInputError, match="at least 1 block"):
            lru(trace, num_blocks)
        with pytest.raises(InvalidInputError, match="at least 1 block"):
            replay_clairvoyant(trace, num_blocks, COST)
    with pytest.raises(ConfigError, match="did you mean 'lru'"):
        replay(trace, "lur", 1, COST)
    backwards = dataclasses.replace(trace, requests=list(trace.requests)[::-1])
    with pytest.raises(InvalidInputError, match=r"at 0\.0 s comes after one of 1\.0 s"):
        lru(backwards, 1)
