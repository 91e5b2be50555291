"""Where every block is sampled, the miss curve is what caches of its sizes really hit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import Trace, agent_trace, chat_trace, few_shot_trace, replay
from prefold.advisor.miss_curve import MissCurve
from prefold.advisor.path_marks import PathMarks, path_marks
from prefold.blocks.table import TOKEN_DTYPE
from prefold.eviction.cost import PRIOR
from support.naive_stack import NaiveLru
from support.traces import make_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request: its blocks, how many are looked up (None for no look-up) and kept."""

    prompt: list[int]
    num_asked: int | None
    num_kept: int


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    made: list[Step] = []
    for _ in range(draw(st.integers(1, 14))):
        start: list[int] = []
        if len(made) > 0 and draw(st.booleans()):
            earlier = draw(st.sampled_from(made)).prompt
            start = earlier[: draw(st.integers(0, len(earlier)))]
        prompt = start + draw(st.lists(st.integers(0, 1), max_size=4))
        ends = st.integers(0, len(prompt))
        made.append(
            Step(
                prompt=prompt,
                num_asked=draw(st.sampled_from([None, draw(ends), len(prompt)])),
                num_kept=draw(st.sampled_from([len(prompt), draw(ends)])),
            )
        )
    return made


def marks_of(prompt: list[int], seed: int = 1) -> PathMarks:
    return path_marks(np.array(prompt, dtype=TOKEN_DTYPE), seed)


@given(steps=steps(), first=st.integers(1, 4), gap=st.integers(0, 5))
def test_a_full_sample_is_exact(steps: list[Step], first: int, gap: int) -> None:
    # The largest size last, beyond which nothing is remembered.
    capacities = [first, first + gap, first + 2 * gap + 1]
    curve = MissCurve(capacities)
    caches = [NaiveLru(num_blocks) for num_blocks in capacities]
    for step in steps:
        marks = marks_of(step.prompt)
        if step.num_asked is None:
            curve.note_use(marks, num_kept=step.num_kept)
        else:
            curve.note(marks, num_asked=step.num_asked, num_kept=step.num_kept)
        for cache in caches:
            if step.num_asked is None:
                cache.use(step.prompt, step.num_kept)
            else:
                cache.serve(step.prompt, step.num_asked, step.num_kept)
        curve.check_invariants()
    found = [(point.hit_blocks, point.hit_depths) for point in curve.points()]
    assert curve.counts() == curve.points()
    assert found == [(cache.num_hits, cache.depths) for cache in caches]
    asked = [step.num_asked for step in steps if step.num_asked is not None]
    assert (curve.num_queries, curve.num_asked) == (len(asked), sum(asked))


@given(steps=steps(), num_blocks=st.integers(1, 12))
def test_it_agrees_with_the_real_cache(steps: list[Step], num_blocks: int) -> None:
    # What does not fit leaves a cache as it was; in one pass for all sizes it cannot.
    prompts = [step.prompt for step in steps if len(step.prompt) <= num_blocks]
    curve = MissCurve([num_blocks])
    for prompt in prompts:
        curve.note(marks_of(prompt), num_asked=len(prompt), num_kept=len(prompt))
    trace = make_trace(prompts, block_size=1)
    [point] = curve.points()
    assert point.hit_blocks == replay(trace, "lru", num_blocks, PRIOR).num_hit_tokens


@given(steps=steps(), budget=st.integers(1, 6), rate=st.sampled_from([1.0, 0.5, 0.1]))
def test_the_sample_never_exceeds_its_budget(
    steps: list[Step], budget: int, rate: float
) -> None:
    curve = MissCurve([2, 30], budget=budget, rate=rate)
    for step in steps:
        marks = marks_of(step.prompt)
        curve.note(marks, num_asked=len(marks), num_kept=step.num_kept)
        curve.check_invariants()
        assert curve.num_sampled <= budget
    for point in curve.points():
        assert 0 <= point.hit_blocks <= curve.num_asked
        assert 0 <= point.hit_depths <= curve.asked_depths


@pytest.mark.parametrize(
    "trace",
    [make(seed=3, num_requests=400) for make in (chat_trace, agent_trace, few_shot_trace)],
    ids=lambda trace: trace.name,
)
def test_a_small_sample_comes_close(trace: Trace) -> None:
    ids = [request.block_ids() for request in trace.requests]
    distinct = len({mark for each in ids for mark in path_marks(each, 0).tolist()})
    capacities = [distinct // 20, distinct // 10, distinct // 4]
    sampled, full = MissCurve(capacities, budget=distinct // 8), MissCurve(capacities)
    for each in ids:
        for curve in (sampled, full):
            marks = path_marks(each, 7)
            curve.note(marks, num_asked=len(marks), num_kept=len(marks))
    assert sampled.rate < 0.6
    for ours, exact in zip(sampled.points(), full.points(), strict=True):
        assert abs(ours.hit_blocks - exact.hit_blocks) < 0.05 * full.num_asked
        assert abs(ours.hit_depths - exact.hit_depths) < 0.05 * full.asked_depths
