"""Appraisal: the three loads for which a cache does not pay, one for which it does."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from prefold.advisor import Trace, chat_trace
from prefold.advisor.advice import Advice, HitLengths, Prices
from prefold.advisor.appraisal import OTHERS, appraise
from prefold.advisor.trace import TraceRequest, make_runs
from prefold.advisor.verdict import Reason, Thresholds
from prefold.advisor.worth import GIB, MemoryPrice
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit
from support.advice import PRICES

BLOCK = 16


def load(
    *,
    shared: int,
    own: int,
    reply: int,
    count: int = 400,
    per_s: float = 8.0,
    tenants: int = 0,
) -> Trace:
    """Requests that share so many blocks and have so many of their own."""
    requests = []
    for number in range(count):
        first = shared + number * own
        requests.append(
            TraceRequest(
                arrival_s=number / per_s,
                num_prompt_tokens=BLOCK * (shared + own),
                num_output_tokens=reply,
                runs=make_runs([[0, shared], [first, own]] if shared else [[first, own]]),
                tenant=f"tenant {number % tenants}" if tenants else None,
            )
        )
    return Trace(name="made", block_size=BLOCK, requests=requests)


@pytest.mark.parametrize(
    ("trace", "reason", "number"),
    [
        (load(shared=2, own=1, reply=20), Reason.SHORT_PROMPTS, "48 tokens"),
        (load(shared=0, own=128, reply=100), Reason.NEVER_REPEATED, "0.0% of 819,200"),
        (load(shared=16, own=4, reply=4000), Reason.DECODE_BOUND, "prefill is 0.8% of it"),
        (load(shared=128, own=6, reply=100), Reason.PAYS, "95.3% of the prompt tokens"),
    ],
    ids=lambda it: it.value if isinstance(it, Reason) else "",
)
def test_the_verdicts(trace: Trace, reason: Reason, number: str) -> None:
    verdict = appraise(trace, PRICES).verdict
    assert verdict.reason is reason, verdict.sentence
    assert number in verdict.sentence
    assert verdict.sentence.startswith("It pays" if verdict.pays else "It does not pay")


def test_a_traces_prefix_of_the_worked_example() -> None:
    # 2,048 tokens, 80 ms, 512 MiB; once a minute, and twenty times a second.
    prices = Prices(
        prefill=CostFit(per_step=0.0, per_token=80e-3 / 2048, per_pair=0.0),
        decode_ms=0.0,
        bytes_per_token=512 * 2**20 / 2048,
    )
    for per_s, saved, pays in ((1 / 60, 4 / 3, False), (20.0, 1600.0, True)):
        count = 600
        trace = load(shared=128, own=1, reply=0, count=count, per_s=per_s)
        advice = appraise(trace, prices)
        # Where it does not pay it is the worst of all.
        best = (advice.best if pays else advice.worst)[0]
        assert (best.begin, best.end, best.num_uses) == (0, 2048, count)
        assert best.reuse is not None
        assert best.reuse.held_bytes == 512 * 2**20
        # 599 reuses in the time between 600 requests.
        assert best.reuse.saved_ms_per_s == pytest.approx(saved)
        assert best.reuse.saved_ms_per_gib_s == pytest.approx(2 * saved)
        assert best.break_even_per_s == pytest.approx(0.078125)
        assert best.reuse.pays(prices.thresholds.price) is pays


def test_what_tenants_hold_sums_to_the_whole() -> None:
    advice = appraise(load(shared=64, own=4, reply=10, count=90, tenants=3), PRICES)
    assert [it.name for it in advice.tenants] == ["tenant 0", "tenant 1", "tenant 2"]
    total = advice.total.load
    assert sum(it.load.held_bytes for it in advice.tenants) == pytest.approx(
        total.held_bytes
    )
    assert sum(it.load.saved_ms for it in advice.tenants) == pytest.approx(total.saved_ms)
    assert sum(it.load.num_requests for it in advice.tenants) == 90
    # They use the shared blocks alike, so they owe alike but for their own.
    held = [it.load.held_bytes for it in advice.tenants]
    assert max(held) / min(held) < 1.05


def test_many_tenants_are_told_together() -> None:
    advice = appraise(load(shared=4, own=1, reply=1, count=404, tenants=202), PRICES)
    assert len(advice.tenants) == 201
    assert advice.tenants[-1].name == OTHERS
    assert sum(it.load.num_requests for it in advice.tenants) == 404


def test_a_smaller_cache_hits_less_and_pays_for_what_it_evicts() -> None:
    trace = chat_trace(seed=5, num_requests=400)
    whole, small = appraise(trace, PRICES), appraise(trace, PRICES, capacity_bytes=GIB / 2)
    assert whole.capacity_bytes is None
    assert whole.total.evicted_ms == 0
    assert small.total.load.hit_rate < whole.total.load.hit_rate
    assert small.total.load.repetition_rate == whole.total.load.hit_rate
    assert small.total.evicted_ms == pytest.approx(
        whole.total.load.saved_ms - small.total.load.saved_ms
    )
    assert small.peak_bytes <= GIB / 2
    assert small.verdict.sentence != whole.verdict.sentence
    rates = [it.hit_rate for it in whole.curve]
    assert rates == sorted(rates)
    assert whole.curve[-1].hit_rate == whole.total.load.hit_rate


@pytest.mark.parametrize("gib", [8, 16, 80])
def test_the_size_that_is_worth_most_decides_and_not_the_largest_that_pays(
    gib: int,
) -> None:
    price = MemoryPrice(machine_bytes=gib * GIB)
    prices = replace(PRICES, thresholds=Thresholds(price=price))
    advice = appraise(chat_trace(seed=5, num_requests=400), prices)
    worth = {each.num_bytes: each.net_ms_per_s or -math.inf for each in advice.curve}
    assert advice.verdict.pays
    assert advice.verdict_bytes == max(worth, key=worth.__getitem__)
    assert sum(net > 0 for net in worth.values()) > 1, "more than one size pays"


def test_who_is_served_without_the_cache_owes_nothing_of_it() -> None:
    requests = [
        TraceRequest(
            arrival_s=float(number),
            num_prompt_tokens=BLOCK * (8 + own),
            num_output_tokens=1,
            runs=make_runs([[0, 8], [1000 * (number + 1), own]]),
            tenant=tenant,
        )
        for number, (tenant, own) in enumerate(10 * [("small", 2), ("huge", 100)])
    ]
    trace = Trace(name="made", block_size=BLOCK, requests=requests)
    capacity = 20 * BLOCK * PRICES.bytes_per_token
    advice = appraise(trace, PRICES, capacity_bytes=capacity)
    held = {each.name: each.load.held_bytes for each in advice.tenants}
    assert held["huge"] == 0
    assert held["small"] == pytest.approx(advice.total.load.held_bytes)


def test_best_and_worst_are_ten_each_in_order() -> None:
    advice = appraise(chat_trace(seed=5, num_requests=400), PRICES)
    best, worst = ([it.net_ms for it in its] for its in (advice.best, advice.worst))
    assert len(best) == len(worst) == 10
    assert best == sorted(best, reverse=True)
    assert worst == sorted(worst)
    assert best[-1] > worst[-1]


def test_without_times_nothing_is_said_of_rates() -> None:
    advice = appraise(load(shared=128, own=6, reply=10), PRICES, has_times=False)
    assert advice.verdict.pays
    assert "without time stamps" in advice.verdict.sentence
    assert advice.total.load.reuse is None
    assert all(it.reuse is None for it in (*advice.best, *advice.worst))
    assert all(it.net_ms_per_s is None for it in advice.curve)


def test_a_cache_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="less than a block"):
        appraise(load(shared=1, own=1, reply=1), PRICES, capacity_bytes=1000)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_prices_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(InvalidInputError):
        replace(PRICES, decode_ms=value)
    with pytest.raises(InvalidInputError):
        replace(PRICES, bytes_per_token=value)


def test_hit_lengths_are_counted_by_powers_of_two() -> None:
    lengths = HitLengths.of(np.array([0, 0, 1, 2, 3, 4, 7, 8]))
    assert lengths.counts == (2, 1, 2, 2, 1)
    assert (lengths.largest, lengths.mean) == (8, 3.125)
    assert HitLengths.of(np.array([], dtype=np.int64)).quantiles["p50"] == 0.0


def test_one_request_at_one_instant() -> None:
    advice: Advice = appraise(load(shared=8, own=1, reply=1, count=1), PRICES)
    assert advice.verdict.reason is Reason.NEVER_REPEATED
    assert advice.total.load.span_s is None
    assert json.dumps(advice.total.load.hit_rate) == "0.0"
