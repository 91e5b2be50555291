"""Made-up traces: the same every time, and of the shape they are said to have."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from prefold.advisor import Trace, agent_trace, chat_trace, few_shot_trace
from prefold.errors import InvalidInputError
from support.traces import facts_of, prompts_of

MAKERS = [chat_trace, agent_trace, few_shot_trace]


@pytest.mark.parametrize("make", MAKERS)
def test_equal_seeds_give_equal_traces(make: Callable[..., Trace]) -> None:
    facts = facts_of(make(seed=1, num_requests=200))
    assert facts == facts_of(make(seed=1, num_requests=200))
    assert facts != facts_of(make(seed=2, num_requests=200))


@pytest.mark.parametrize("make", MAKERS)
def test_a_trace_is_in_order_and_its_prompts_are_full_blocks(
    make: Callable[..., Trace],
) -> None:
    trace = make(seed=1, num_requests=200, block_size=32)
    assert len(trace.requests) == 200
    arrivals = [request.arrival_s for request in trace.requests]
    assert arrivals == sorted(arrivals)
    for request in trace.requests:
        assert request.num_blocks == request.num_prompt_tokens // 32
        assert request.num_blocks > 0


def test_a_turn_begins_with_the_turn_before() -> None:
    trace = chat_trace(seed=1, num_requests=400)
    last: dict[str, list[int]] = {}
    num_later = num_single = 0
    for request, prompt in zip(trace.requests, prompts_of(trace), strict=True):
        if request.session is None:
            num_single += 1
            continue
        if request.session in last:
            num_later += 1
            assert prompt[: len(last[request.session])] == last[request.session]
        last[request.session] = prompt
    assert num_later > 100
    assert num_single > 50


def test_agents_share_one_system_prompt_and_come_back_within_seconds() -> None:
    trace = agent_trace(seed=1, num_requests=400)
    firsts = {tuple(prompt[:150]) for prompt in prompts_of(trace)}
    assert len(firsts) == 1
    at: dict[str, list[float]] = {}
    for request in trace.requests:
        assert request.session is not None
        at.setdefault(request.session, []).append(request.arrival_s)
    gaps = sorted(b - a for its in at.values() for a, b in pairwise(its))
    assert 4 < gaps[len(gaps) // 2] < 16


def test_questions_follow_a_few_sets_of_examples() -> None:
    trace = few_shot_trace(seed=1, num_requests=400, num_tasks=5)
    assert len({prompt[0] for prompt in prompts_of(trace)}) == 5


@pytest.mark.parametrize("make", MAKERS)
def test_what_makes_no_sense_is_refused(make: Callable[..., Trace]) -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        make(seed=1, num_requests=0)
    with pytest.raises(InvalidInputError, match="above 0"):
        make(seed=1, num_requests=1, requests_per_s=0.0)
