"""Replays against naive models: LRU from a dict of prefixes, the bound by trying all."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import grow_block_tree, replay, replay_clairvoyant
from prefold.eviction.cost import PRIOR
from prefold.eviction.registry import POLICIES
from support.naive_eviction import NaiveLru, most_hits, prefixes
from support.traces import make_trace


@st.composite
def repeated_prompts(
    draw: st.DrawFn, *, letters: int, longest: int, num_requests: int, own_end: bool = False
) -> list[list[int]]:
    """A few different prompts, each asked again and again.

    Args:
        draw: Hypothesis's own.
        letters: Different ids.
        longest: Blocks of a prompt at most.
        num_requests: How many; half as many are different.
        own_end: Whether each prompt ends in a block of its own. Where one ends inside
            another, the tree takes the rest of that run for used as well, and a naive
            model does not.
    """
    # Long ones as often as short ones: left alone, lists are nearly always short.
    prompt = st.integers(0, longest).flatmap(
        lambda length: st.lists(
            st.integers(0, letters - 1), min_size=length, max_size=length
        )
    )
    pool = draw(st.lists(prompt, min_size=num_requests // 2, max_size=num_requests // 2))
    if own_end:
        pool = [[*prompt, 100 + number] for number, prompt in enumerate(pool)]
    number_of_one = st.integers(0, len(pool) - 1)
    return [pool[draw(number_of_one)] for _ in range(num_requests)]


@given(
    prompts=repeated_prompts(letters=2, longest=4, num_requests=16, own_end=True),
    num_blocks=st.integers(3, 16),
)
def test_lru_hits_what_a_dict_of_prefixes_does(
    prompts: list[list[int]], num_blocks: int
) -> None:
    trace = make_trace(prompts)
    naive = NaiveLru(num_blocks)
    expected = [16 * naive.serve(prompt) for prompt in prompts]
    result = replay(trace, "lru", num_blocks, PRIOR)
    assert result.hit_tokens.tolist() == expected
    assert result.num_evicted_blocks == naive.num_evicted_blocks
    too_large = sum(len(prompt) > num_blocks for prompt in prompts)
    assert result.num_uncached == too_large
    assert result.num_hit_tokens == sum(expected)


@given(
    prompts=repeated_prompts(letters=3, longest=3, num_requests=8),
    num_blocks=st.integers(1, 4),
    holds_prompts=st.booleans(),
)
def test_the_bound_is_the_best_of_all_choices(
    prompts: list[list[int]],
    num_blocks: int,
    holds_prompts: bool,  # noqa: FBT001
) -> None:
    trace = make_trace(prompts)
    result = replay_clairvoyant(trace, num_blocks, PRIOR, holds_prompts=holds_prompts)
    assert result.num_hit_tokens == 16 * most_hits(
        prompts, num_blocks, holds_prompts=holds_prompts
    )


PROMPTS = repeated_prompts(letters=3, longest=8, num_requests=12)


@given(prompts=PROMPTS, num_blocks=st.integers(1, 16))
def test_no_policy_beats_the_bound(prompts: list[list[int]], num_blocks: int) -> None:
    trace = make_trace(prompts)
    bound = replay_clairvoyant(trace, num_blocks, PRIOR).num_hit_tokens
    held = replay_clairvoyant(trace, num_blocks, PRIOR, holds_prompts=True)
    assert held.num_hit_tokens <= bound
    for policy in POLICIES:
        result = replay(trace, policy, num_blocks, PRIOR)
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
        replay(trace, "lru", num_blocks, PRIOR),
        replay_clairvoyant(trace, num_blocks, PRIOR),
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
