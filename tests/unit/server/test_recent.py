"""Recent hits: what of the last minutes is remembered, and what is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.cache import MissKind, MissReason
from prefold.engine.request import (
    FinishReason,
    RequestId,
    RequestOutput,
    Timing,
    Usage,
)
from prefold.errors import InvariantError
from prefold.server.hits import HitClass
from prefold.server.recent import BUCKET_S, MAX_TIMES, NUM_BUCKETS, RecentHits
from support.settable_clock import SettableClock


def output(
    prompt: int,
    cached: int,
    *,
    ttft_s: float | None = 0.5,
    miss: MissKind | None = MissKind.NEVER_SEEN,
) -> RequestOutput:
    reason = None if miss is None else MissReason(kind=miss, at_token=cached)
    return RequestOutput(
        request_id=RequestId("1"),
        text="",
        token_ids=(),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=1),
        timing=Timing(queued_s=0.0, ttft_s=ttft_s, tpot_s=None, total_s=1.0),
        miss_reason=reason,
    )


def times_of(recent: RecentHits, hit: HitClass) -> tuple[int, float | None, float | None]:
    [its] = [each for each in recent.first_tokens() if each.hit is hit]
    return its.num_requests, its.median_s, its.p95_s


def test_nothing_is_known_at_first() -> None:
    recent = RecentHits(SettableClock(5.0))
    assert recent.sums() == []
    assert [each.hit for each in recent.first_tokens()] == list(HitClass)
    assert times_of(recent, HitClass.NONE) == (0, None, None)


def test_requests_of_the_same_seconds_are_one_piece() -> None:
    clock = SettableClock(100.0)
    recent = RecentHits(clock)
    recent.note(output(100, 0))
    recent.note(output(50, 40))
    clock.advance(2 * BUCKET_S)
    recent.note(output(10, 9))
    old, new = recent.sums()
    assert (old.age_s, old.num_requests, old.prompt_tokens, old.hit_tokens) == (
        2 * BUCKET_S,
        2,
        150,
        40,
    )
    assert (new.age_s, new.num_requests, new.prompt_tokens) == (0.0, 1, 10)
    recent.check_invariants()


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    clock = SettableClock(100.0)
    recent = RecentHits(clock)
    recent.note(output(100, 0))
    clock.advance(BUCKET_S * (NUM_BUCKETS - 1))
    assert len(recent.sums()) == 1
    clock.advance(BUCKET_S)
    assert recent.sums() == []


def test_who_looked_nothing_up_does_not_count() -> None:
    recent = RecentHits(SettableClock(0.0))
    recent.note(output(100, 0, miss=None))
    recent.note(output(100, 0, miss=MissKind.READ_OFF))
    recent.note(output(100, 101))
    assert recent.sums() == []
    assert times_of(recent, HitClass.NONE) == (0, None, None)


def test_times_are_told_apart_by_what_hit() -> None:
    recent = RecentHits(SettableClock(0.0))
    for number in range(1, 21):
        recent.note(output(100, 0, ttft_s=float(number)))
    recent.note(output(100, 99, ttft_s=0.25))
    recent.note(output(100, 50, ttft_s=None))
    assert times_of(recent, HitClass.NONE) == (20, 10.0, 19.0)
    assert times_of(recent, HitClass.FULL) == (1, 0.25, 0.25)
    assert times_of(recent, HitClass.PARTIAL) == (0, None, None)
    assert recent.sums()[0].num_requests == 22


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 99), st.integers(0, 99))))
def test_the_sums_are_those_of_the_last_ten_minutes(
    calls: list[tuple[float, int, int]],
) -> None:
    clock = SettableClock(1_000.0)
    recent = RecentHits(clock)
    noted: list[tuple[int, int, int]] = []
    for wait_s, prompt, cached in calls:
        clock.advance(wait_s)
        recent.note(output(prompt + cached, cached))
        noted.append((int(clock() // BUCKET_S), prompt + cached, cached))
        recent.check_invariants()
    now = int(clock() // BUCKET_S)
    last = [(p, c) for number, p, c in noted if number > now - NUM_BUCKETS]
    sums = recent.sums()
    assert sum(each.num_requests for each in sums) == len(last)
    assert sum(each.prompt_tokens for each in sums) == sum(p for p, _ in last)
    assert sum(each.hit_tokens for each in sums) == sum(c for _, c in last)


def test_what_is_kept_is_bounded() -> None:
    clock = SettableClock(0.0)
    recent = RecentHits(clock)
    for _ in range(MAX_TIMES + 50):
        clock.advance(BUCKET_S)
        recent.note(output(100, 0))
    assert times_of(recent, HitClass.NONE)[0] == MAX_TIMES
    assert len(recent.sums()) == NUM_BUCKETS
    recent.check_invariants()
    recent._buckets.appendleft((10**9, 1, 1, 2))
    with pytest.raises(InvariantError):
        recent.check_invariants()
