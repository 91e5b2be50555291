"""Replays against naive models: LRU from a dict of prefixes, the bound by trying all."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import (
    PrefillCost,
    grow_block_tree,
    replay,
    replay_clairvoyant,
)
from prefold.eviction.registry import POLICIES
from support.naive_eviction import NaiveLru, most_hits, prefixes
from support.traces import make_trace

COST = PrefillCost()

LETTERS = st.lists(st.integers(0, 2), max_size=6)


@st.composite
def ended_prompts(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that each end in a block of their own, some of them repeated.

    Where one prompt ends inside another, the tree takes the rest of that run for used as
    well, and the naive model does not.
    """
    prompts: list[list[int]] = []
    for number in range(draw(st.integers(1, 24))):
        if number > 0 and draw(st.integers(0, 3)) == 0:
            prompts.append(draw(st.sampled_from(prompts)))
        else:
            prompts.append([*draw(LETTERS), 100 + number])
    return prompts


@given(prompts=ended_prompts(), num_blocks=st.integers(1, 20))
def test_lru_hits_what_a_dict_of_prefixes_does(
    prompts: list[list[int]], num_blocks: int
) -> None:
    trace = make_trace(prompts)
    naive = NaiveLru(num_blocks)
    expected = [16 * naive.serve(prompt) for prompt in prompts]
    result = replay(trace, "lru", num_blocks, COST)
    assert result.hit_tokens.tolist() == expected
    assert result.num_evicted_blocks == naive.num_evicted_blocks
    too_large = sum(len(prompt) > num_blocks for prompt in prompts)
    assert result.num_uncached == too_large
    assert result.num_hit_tokens == sum(expected)


SMALL_PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=6)


@given(prompts=SMALL_PROMPTS, num_blocks=st.integers(1, 4), holds_prompts=st.booleans())
def test_the_bound_is_the_best_of_all_choices(
    prompts: list[list[int]],
    num_blocks: int,
    holds_prompts: bool,  # noqa: FBT001
) -> None:
    trace = make_trace(prompts)
    result = replay_clairvoyant(trace, num_blocks, COST, holds_prompts=holds_prompts)
    assert result.num_hit_tokens == 16 * most_hits(
        prompts, num_blocks, holds_prompts=holds_prompts
    )


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=30)


@given(prompts=PROMPTS, num_blocks=st.integers(1, 16))
def test_no_policy_beats_the_bound(prompts: list[list[int]], num_blocks: int) -> None:
    trace = make_trace(prompts)
    bound = replay_clairvoyant(trace, num_blocks, COST).num_hit_tokens
    held = replay_clairvoyant(trace, num_blocks, COST, holds_prompts=True)
    assert held.num_hit_tokens <= bound
    for policy in POLICIES:
        result = replay(trace, policy, num_blocks, COST)
        assert result.num_hit_tokens <= held.num_hit_tokens
        assert result.num_uncached == held.num_uncached


@given(prompts=PROMPTS)
def test_with_room_for_all_everything_seen_is_hit(prompts: list[list[int]]) -> None:
    trace = make_trace(prompts)
    num_blocks = max(grow_block_tree(map(np.array, prompts)).num_blocks, 1)
    seen: set[tuple[int, ...]] = set()
    expected = []
    for prompt in prompts:
        expected.append(16 * sum(prefix in seen for prefix in prefixes(prompt)))
        seen.update(prefixes(prompt))
    assert num_blocks == max(len(seen), 1)
    for result in (
        replay(trace, "lru", num_blocks, COST),
        replay_clairvoyant(trace, num_blocks, COST),
    ):
        assert result.hit_tokens.tolist() == expected
        assert result.num_evicted_blocks == 0


@given(prompts=PROMPTS)
def test_the_runs_of_a_block_tree_are_used_as_a_whole(prompts: list[list[int]]) -> None:
    trace = make_trace(prompts)
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    users: dict[int, set[int]] = {}
    for number, (prompt, path) in enumerate(zip(prompts, tree.paths(), strict=True)):
        assert tree.lengths[path].sum() == len(prompt)
        assert [int(tree.parents[run]) for run in path] == [0, *path[:-1]][: len(path)]
        for run in path.tolist():
            users.setdefault(run, set()).add(number)
    # Whoever shares a run's beginning shares the run: its blocks have the same users.
    for number, path in enumerate(tree.paths()):
        for run in path.tolist():
            end = int(tree.depths[run] + tree.lengths[run])
            start = int(tree.depths[run])
            for length in range(start + 1, end + 1):
                prefix = prompts[number][:length]
                assert users[run] == {
                    other
                    for other, prompt in enumerate(prompts)
                    if prompt[:length] == prefix
                }
    assert len(tree.lengths) <= 2 * len(prompts) + 1
