from __future__ import annotations

import math
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prefold.engine import sampler as sampler_module
from prefold.engine.request import SamplingParams
from prefold.engine.sampler import Sampler, SamplerState
from prefold.errors import RequestError

NO_PROMPT = np.zeros(0, dtype=np.int64)

# Few distinct values, so that ties are the rule.
logit_rows = st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=2, max_size=9)
params_values = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([0, 1, 2, 3, 50]),
        # Where equal weights cannot add up to it exactly, but for rounding.
        "top_p": st.sampled_from([1e-9, 0.2137, 0.5113, 0.9071, 1.0]),
        "min_p": st.sampled_from([0.0, 0.1, 0.6, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.7]),
    }
)


def start(
    vocab_size: int, prompt: list[int] | None = None, **values: Any
) -> tuple[Sampler, SamplerState]:
    sampler = Sampler(vocab_size)
    tokens = np.array(prompt or [], dtype=np.int64)
    return sampler, sampler.start(SamplingParams(**values), tokens, fallback_seed=1)


def naive_probabilities(
    logits: list[float], params: SamplingParams, seen: set[int]
) -> dict[int, float]:
    """The distribution by sorted lists; what is left out has no entry."""
    penalty = params.repetition_penalty
    scores = list(logits)
    for token in seen:
        scores[token] = (
            scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        )
    ranked = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if params.temperature == 0.0:
        return {ranked[0]: 1.0}
    weights = [math.exp((score - max(scores)) / params.temperature) for score in scores]
    if params.top_k:
        ranked = ranked[: params.top_k]
    total = sum(weights[token] for token in ranked)
    kept: list[int] = []
    mass = 0.0
    for token in ranked:
        if mass >= params.top_p * total and kept:
            break
        kept.append(token)
        mass += weights[token]
    kept = [token for token in kept if weights[token] >= params.min_p]
    total = sum(weights[token] for token in kept)
    return {token: weights[token] / total for token in kept}


class FixedDraw(SamplerState):
    """A state whose stream is one number; slots keep it from being patched."""

    __slots__ = ("uniform",)

    def __init__(
        self, params: SamplingParams, uniform: float, seen: np.ndarray | None = None
    ) -> None:
        super().__init__(params, np.random.SeedSequence(0), seen)
        self.uniform = uniform

    def draw(self) -> float:
        return self.uniform


@given(
    row=logit_rows,
    values=params_values,
    seen=st.sets(st.integers(0, 8)),
    slices=st.sampled_from([7, 64]),
)
def test_every_filter_gives_the_distribution_of_the_naive_one(
    row: list[float], values: dict[str, Any], seen: set[int], slices: int
) -> None:
    params = SamplingParams(**values)
    seen = {token for token in seen if token < len(row)}
    expected = naive_probabilities(row, params, seen)
    marks = np.isin(np.arange(len(row)), list(seen))
    sampler = Sampler(len(row))
    counts: Counter[int] = Counter()
    for index in range(slices):
        mask = None if params.repetition_penalty == 1.0 else marks.copy()
        state = FixedDraw(params, (index + 0.5) / slices, mask)
        counts[sampler.sample(torch.tensor(row), state)] += 1
    # Evenly spread numbers meet each interval of the distribution about as often as it
    # is wide: at most one too many or too few at either end.
    assert counts.keys() <= expected.keys()
    for token, probability in expected.items():
        assert abs(counts[token] - probability * slices) <= 1.0 + 1e-6


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.zeros(4)
    for top_p, num_kept in [(0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4)]:
        sampler, state = start(4, temperature=1.0, top_p=top_p, seed=0)
        drawn = {sampler.sample(logits, state) for _ in range(100)}
        assert drawn == set(range(num_kept))


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0])
    sampler, state = start(4, temperature=1.0, seed=5)
    counts = Counter(sampler.sample(logits, state) for _ in range(5_000))
    expected = torch.softmax(logits.double(), dim=0)
    for token in range(4):
        assert counts[token] / 5_000 == pytest.approx(float(expected[token]), abs=0.024)


def test_the_same_seed_gives_the_same_reply_and_another_another() -> None:
    logits = torch.zeros(1000)

    def reply(seed: int | None, fallback: int = 0) -> list[int]:
        sampler = Sampler(1000)
        params = SamplingParams(temperature=1.0, seed=seed)
        state = sampler.start(params, NO_PROMPT, fallback_seed=fallback)
        return [sampler.sample(logits, state) for _ in range(8)]

    assert reply(7) == reply(7, fallback=9)
    replies = {tuple(reply(seed)) for seed in (7, 8, -7, -8, 7 + 2**32, 2**63 - 1, 0)}
    assert len(replies) == 7
    assert reply(None, fallback=7) == reply(7)
    assert reply(None, fallback=1) != reply(None, fallback=2)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 700, generator=generator)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 2.0, "top_k": 20, "min_p": 0.05},
        {"repetition_penalty": 1.3},
        {"temperature": 1.0, "top_p": 0.99, "repetition_penalty": 0.7},
    ]
    sampler = Sampler(700)

    def states() -> list[SamplerState]:
        return [
            sampler.start(SamplingParams(**kind, seed=seed), np.arange(9), fallback_seed=0)
            for seed, kind in enumerate(kinds)
        ]

    together = states()
    alone = states()
    reverse = states()
    for _ in range(5):
        batch = [row.token_id for row in sampler.sample_batch(logits, together)]
        singles = [
            sampler.sample(row, state) for row, state in zip(logits, alone, strict=True)
        ]
        backwards = sampler.sample_batch(logits.flip(0), reverse[::-1])[::-1]
        assert batch == singles == [row.token_id for row in backwards]


def test_how_many_candidates_are_sorted_first_cannot_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(4)
    # Rounded, so that many are equal, also where the candidates end.
    logits = torch.randn(500, generator=generator).mul(4).round().div(4)

    def reply(num_sorted: int) -> list[int]:
        monkeypatch.setattr(sampler_module, "_FIRST_CANDIDATES", num_sorted)
        sampler, state = start(500, temperature=1.5, top_p=0.97, seed=1)
        return [sampler.sample(logits, state) for _ in range(200)]

    assert reply(1) == reply(17) == reply(256) == reply(500) == reply(10_000)


def test_greedy_takes_the_first_of_equal_logits() -> None:
    sampler, state = start(5)
    assert sampler.sample(torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0]), state) == 1


def test_a_tiny_temperature_is_greedy_and_a_huge_spread_does_no_harm() -> None:
    logits = torch.tensor([-3.4e38, 3.4e38, 0.0, -math.inf])
    for temperature in (5e-324, 1e-300, 1.0, 100.0):
        sampler, state = start(4, temperature=temperature, top_p=0.9, seed=0)
        assert sampler.sample(logits, state) == 1


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.full((50,), -math.inf)
    logits[[3, 20]] = 0.0
    sampler, state = start(50, temperature=1.0, seed=0)
    assert {sampler.sample(logits, state) for _ in range(200)} == {3, 20}
    for uniform in (0.0, 1.0 - 2**-53):
        fixed = FixedDraw(SamplingParams(temperature=1.0), uniform)
        assert sampler.sample(logits, fixed) in {3, 20}


def test_the_repetition_penalty_covers_prompt_and_reply() -> None:
    logits = torch.tensor([2.0, 1.9, 1.8, -1.0])
    sampler, state = start(4, prompt=[0, -5], repetition_penalty=1.5)
    assert [sampler.sample(logits, state) for _ in range(3)] == [1, 2, 0]
    # Below zero it is multiplied, so it falls as well.
    negative = torch.tensor([-1.0, -1.2, -9.0, -9.0])
    sampler, state = start(4, prompt=[0], repetition_penalty=1.5)
    assert sampler.sample(negative, state) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("values", [{}, {"temperature": 1.0}, {"repetition_penalty": 2.0}])
def test_unusable_logits_fail_their_own_row_only(
    bad: float, values: dict[str, Any]
) -> None:
    sampler = Sampler(4)
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 3)
    logits[1, 0] = bad
    states = [
        sampler.start(SamplingParams(**values, seed=seed), np.array([3]), fallback_seed=0)
        for seed in range(3)
    ]
    clean = [
        sampler.start(SamplingParams(**values, seed=seed), np.array([3]), fallback_seed=0)
        for seed in range(3)
    ]
    expected = sampler.sample_batch(logits[[0, 2, 0]], clean)
    rows = sampler.sample_batch(logits, states)
    assert rows[1].token_id is None
    assert rows[1].error is not None
    assert "not numbers" in rows[1].error
    assert [rows[0], rows[2]] == [expected[0], expected[2]]
    # The failed row's state is where it was.
    assert sampler.sample(logits[0], states[1]) == expected[1].token_id
    with pytest.raises(RequestError, match="not numbers"):
        sampler.sample(logits[1], states[1])


def test_a_row_of_minus_infinity_fails() -> None:
    sampler, state = start(3)
    with pytest.raises(RequestError):
        sampler.sample(torch.full((3,), -math.inf), state)


def test_no_rows_give_no_tokens_and_a_wrong_shape_is_refused() -> None:
    sampler, state = start(3)
    assert sampler.sample_batch(torch.zeros(0, 3), []) == []
    with pytest.raises(ValueError, match="1 rows of 3"):
        sampler.sample_batch(torch.zeros(1, 4), [state])


def test_the_logits_are_not_changed() -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    sampler = Sampler(50)
    params = SamplingParams(temperature=1.0, top_p=0.5, repetition_penalty=2.0)
    states = [sampler.start(params, np.arange(9), fallback_seed=i) for i in range(2)]
    sampler.sample_batch(logits, states)
    assert torch.equal(logits, before)


def test_forks_follow_from_seed_place_and_index() -> None:
    logits = torch.zeros(500)

    def replies(num_before: int) -> list[tuple[int, ...]]:
        sampler, state = start(500, temperature=1.0, seed=3)
        for _ in range(num_before):
            sampler.sample(logits, state)
        forks = [state.fork(0), state.fork(1), state.fork(0).fork(0), state]
        return [tuple(sampler.sample(logits, fork) for _ in range(6)) for fork in forks]

    assert replies(2) == replies(2)
    assert len({*replies(2), *replies(3)}) == 8


def test_a_fork_leaves_its_parent_alone() -> None:
    logits = torch.tensor([2.0, 1.9, 1.8])
    sampler, state = start(3, repetition_penalty=1.5)
    child = state.fork(0)
    assert sampler.sample(logits, child) == 0
    assert sampler.sample(logits, state) == 0
    assert sampler.sample(logits, child) == 1


def test_the_work_of_a_batch_does_not_grow_with_the_reply() -> None:
    sampler = Sampler(20)
    states = [
        sampler.start(SamplingParams(), NO_PROMPT, fallback_seed=0) for _ in range(16)
    ]
    logits = torch.zeros(16, 20)

    def count_calls() -> int:
        calls = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in {"call", "c_call"}

        sys.setprofile(count)
        try:
            sampler.sample_batch(logits, states)
        finally:
            sys.setprofile(None)
        return calls

    count_calls()
    first = count_calls()
    for _ in range(50):
        sampler.sample_batch(logits, states)
    assert count_calls() == first
