"""Metrics count what they are told, and survive whatever that is."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor.what_if import WhatIf, WhatIfPoint
from prefold.blocks.pool import BlockCounts
from prefold.cache import NO_CACHE, CacheSnapshot, CostFit, PrefillCost
from prefold.engine.config import RequestOptions
from prefold.engine.request import FinishReason
from prefold.eviction.cost import num_pairs
from prefold.server.metrics import Metrics
from prefold.server.observer import ExchangeId, Plane
from prefold.server.snapshot import EngineSnapshot, QuotasOfPool, ShareOfPool
from support.outputs import make_output
from support.planes_rig import parse_metrics, total

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

CACHE = CacheSnapshot(
    blocks=BlockCounts(free=5, private=4, shared=3, idle=2),
    num_trees=1,
    num_nodes=6,
    num_leases=2,
    num_evictions=3,
    num_evicted_blocks=7,
)
WHAT_IF = WhatIf(
    block_size=16,
    sample_rate=0.5,
    num_sampled=9,
    num_requests=2,
    has_cost=True,
    points=(
        WhatIfPoint(factor=0.5, num_blocks=7, hit_rate=0.1, saved_s=1.5, saved_share=0.2),
    ),
)
SNAPSHOT = EngineSnapshot(
    cache=CACHE,
    policy="lru",
    quotas=QuotasOfPool(
        shares=(
            ShareOfPool(domain="acme", num_idle=11, num_reserved=12, max_idle=13),
            ShareOfPool(domain="blue/chat", num_idle=21, num_reserved=22, max_idle=23),
        ),
        num_others_idle=31,
        num_approved_idle=41,
        max_pinned=51,
    ),
    cost=CostFit(per_step=0.5, per_token=0.25, per_pair=0.125),
    num_approvals=3,
    num_pinned_blocks=2,
    num_blocks=14,
    block_size=16,
    num_running=2,
    num_waiting=9,
    max_queued=100,
    num_steps=50,
    num_computed_tokens=1000,
    num_hit_tokens=500,
    num_sampled_tokens=40,
    num_admissions=12,
    num_preemptions=4,
    num_failed_steps=0,
    num_waits=1,
    num_regretted_tokens=600,
    regretted_s=1.5,
)

#: What a counter must not take, and what a bug or a broken device may hand over.
BAD = [-1, -0.5, math.nan, math.inf, -math.inf, 10**400, True, "7", None, [1]]


TENANTS = {"acme": "acme", "blue/chat": "blue"}


def make_metrics(cost: PrefillCost | None = None) -> Metrics:
    return Metrics(tenants=TENANTS, cost=cost or PrefillCost())


def learn(cost: PrefillCost) -> None:
    """Let it find 10 ms a token and 1 ms a pair, and 1 s a step."""
    for start, num_tokens in ((0, 20), (0, 40), (100, 30), (50, 20), (10, 60)):
        pairs = num_pairs(start, start + num_tokens)
        cost.note_step(1.0 + 0.01 * num_tokens + 0.001 * pairs, num_tokens, pairs)
    assert cost.fit is not None


def options(tenant: str = "acme") -> RequestOptions:
    return RequestOptions(tenant=tenant)


def scrape(
    metrics: Metrics, snapshot: EngineSnapshot | None = SNAPSHOT
) -> dict[str, float]:
    return parse_metrics(metrics.render(snapshot).decode())


def errors(metrics: Metrics) -> float:
    return scrape(metrics, None)["prefold_metric_errors_total"]


def test_a_finished_request_is_counted() -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(), options())
    seen = scrape(metrics)
    assert seen['prefold_requests_total{outcome="finished"}'] == 1
    assert seen['prefold_prompt_tokens_total{tenant="acme"}'] == 100
    assert seen['prefold_query_tokens_total{tenant="acme"}'] == 100
    assert seen['prefold_hit_tokens_total{tenant="acme"}'] == 64
    assert seen['prefold_completion_tokens_total{tenant="acme"}'] == 8
    assert seen["prefold_hit_length_tokens_sum"] == 64
    assert seen["prefold_hit_length_tokens_count"] == 1
    assert seen['prefold_time_to_first_token_seconds_sum{hit="partial"}'] == 0.2
    assert seen['prefold_time_per_output_token_seconds_sum{hit="partial"}'] == 0.03
    assert seen["prefold_metric_errors_total"] == 0


@pytest.mark.parametrize(
    ("cached", "hit"),
    [
        (0, "none"),
        (4, "partial"),
        (64, "partial"),
        (95, "partial"),
        (96, "full"),
        (99, "full"),
    ],
)
def test_times_are_split_by_hit(cached: int, hit: str) -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(cached=cached), options())
    seen = scrape(metrics)
    for name in ("time_to_first_token", "time_per_output_token"):
        counts = {
            other: seen[f'prefold_{name}_seconds_count{{hit="{other}"}}']
            for other in ("none", "partial", "full")
        }
        assert counts == {other: float(other == hit) for other in counts}


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (FinishReason.STOP, "finished"),
        (FinishReason.LENGTH, "finished"),
        (FinishReason.ABORTED, "aborted"),
        (FinishReason.FAILED, "failed"),
    ],
)
def test_each_end_has_an_outcome(reason: FinishReason, outcome: str) -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(reason=reason), options())
    seen = scrape(metrics)
    assert seen[f'prefold_requests_total{{outcome="{outcome}"}}'] == 1
    assert total(seen, "prefold_requests_total") == 1


def test_a_refused_request_is_counted() -> None:
    metrics = make_metrics()
    metrics.on_refused("acme")
    assert scrape(metrics)['prefold_requests_total{outcome="refused"}'] == 1


def test_what_did_not_ask_the_cache_is_no_query() -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(cached=0), RequestOptions(access=NO_CACHE))
    # Ended while it waited: it never looked.
    metrics.on_finished(
        make_output(cached=0, reply=0, reason=FinishReason.ABORTED, miss=None), options()
    )
    seen = scrape(metrics)
    assert total(seen, "prefold_prompt_tokens_total") == 200
    assert total(seen, "prefold_query_tokens_total") == 0
    assert seen["prefold_hit_length_tokens_count"] == 0


def test_a_tenant_that_is_not_configured_makes_no_label() -> None:
    metrics = make_metrics()
    for tenant in ("canary-1", "canary-2"):
        metrics.on_finished(make_output(), options(tenant))
    text = metrics.render(SNAPSHOT).decode()
    assert "canary" not in text
    assert parse_metrics(text)['prefold_prompt_tokens_total{tenant="other"}'] == 200


def test_a_missing_time_is_no_observation() -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(ttft_s=None, tpot_s=None), options())
    seen = scrape(metrics)
    assert total(seen, "prefold_time_to_first_token_seconds_count") == 0
    assert seen["prefold_metric_errors_total"] == 0


def test_responses_are_counted_by_plane_route_and_status() -> None:
    metrics = make_metrics()
    metrics.on_response(Plane.PUBLIC, "/v1/models", 200)
    metrics.on_response(Plane.PUBLIC, None, 404)
    metrics.on_response(Plane.ADMIN, "/metrics", 10**9)
    seen = scrape(metrics)
    name = "prefold_http_responses_total"
    assert seen[f'{name}{{plane="public",route="/v1/models",status="200"}}'] == 1
    assert seen[f'{name}{{plane="public",route="other",status="404"}}'] == 1
    assert seen[f'{name}{{plane="admin",route="/metrics",status="other"}}'] == 1


@pytest.mark.parametrize(
    ("status", "label"),
    [(99, "other"), (100, "100"), (599, "599"), (600, "other"), (True, "other")],
)
def test_a_status_that_is_none_makes_no_label(status: int, label: str) -> None:
    metrics = make_metrics()
    metrics.on_response(Plane.PUBLIC, "/v1/models", status)
    [name] = [n for n in scrape(metrics) if n.startswith("prefold_http_responses_total{")]
    assert name.endswith(f'status="{label}"}}')


def test_a_histogram_has_steps_of_its_own_scale() -> None:
    metrics = make_metrics()
    metrics.on_finished(
        make_output(cached=16, ttft_s=0.75, tpot_s=0.025, prompt=100), options()
    )
    seen = scrape(metrics)
    for name, labels, below, above in (
        ("prefold_hit_length_tokens", "", "0.0", "16.0"),
        ("prefold_time_to_first_token_seconds", 'hit="partial",', "0.5", "1.0"),
        ("prefold_time_per_output_token_seconds", 'hit="partial",', "0.02", "0.03"),
    ):
        assert seen[f'{name}_bucket{{{labels}le="{below}"}}'] == 0
        assert seen[f'{name}_bucket{{{labels}le="{above}"}}'] == 1


def test_a_scrape_in_which_nothing_happened_is_no_error() -> None:
    metrics = make_metrics()
    assert scrape(metrics)["prefold_evicted_blocks_total"] == 7
    assert scrape(metrics)["prefold_evicted_blocks_total"] == 7
    assert errors(metrics) == 0


def price(num_tokens: int) -> float:
    return 0.01 * num_tokens + 0.001 * num_tokens * (num_tokens - 1) / 2


def test_seconds_saved_are_what_the_hits_would_have_taken_at_their_depth() -> None:
    cost = PrefillCost()
    learn(cost)
    metrics = make_metrics(cost)
    metrics.on_finished(make_output(cached=64), options())
    metrics.on_finished(make_output(cached=16), options())
    saved = scrape(metrics)["prefold_prefill_seconds_saved_total"]
    assert saved == pytest.approx(price(64) + price(16))
    assert saved < price(64 + 16)


def test_hits_before_the_first_fit_are_added_once_when_it_is_there() -> None:
    cost = PrefillCost()
    metrics = make_metrics(cost)
    for cached in (64, 16):
        metrics.on_finished(make_output(cached=cached), options())
        metrics.on_step(1.0, 100)
    assert scrape(metrics)["prefold_prefill_seconds_saved_total"] == 0
    learn(cost)
    for _ in range(2):
        metrics.on_step(1.0, 1)
        saved = scrape(metrics)["prefold_prefill_seconds_saved_total"]
        assert saved == pytest.approx(price(64) + price(16))


def test_what_eviction_cost_is_read_at_each_scrape() -> None:
    metrics = make_metrics()
    more = replace(SNAPSHOT, num_regretted_tokens=700, regretted_s=2.25)
    for snapshot, tokens, seconds in ((SNAPSHOT, 600, 1.5), (more, 700, 2.25)):
        seen = scrape(metrics, snapshot)
        assert seen["prefold_regretted_tokens_total"] == tokens
        assert seen["prefold_regretted_prefill_seconds_total"] == seconds


def test_steps_are_added_up() -> None:
    metrics = make_metrics()
    metrics.on_step(0.5, 20)
    metrics.on_step(0.25, 1)
    seen = scrape(metrics)
    assert seen["prefold_steps_total"] == 2
    assert seen["prefold_step_seconds_total"] == 0.75
    assert seen["prefold_computed_tokens_total"] == 21


def test_gauges_are_those_of_the_snapshot() -> None:
    seen = scrape(make_metrics())
    states = {
        state: seen[f'prefold_blocks{{state="{state}"}}']
        for state in ("free", "private", "shared", "idle")
    }
    assert states == {"free": 5, "private": 4, "shared": 3, "idle": 2}
    assert seen["prefold_approvals"] == 3
    assert seen["prefold_pinned_blocks"] == 2
    assert seen["prefold_queue_length"] == 9
    assert seen["prefold_running_sequences"] == 2
    assert seen["prefold_engine_alive"] == 1
    assert seen["prefold_evicted_blocks_total"] == 7
    assert seen["prefold_preemptions_total"] == 4
    assert seen["prefold_prefill_token_seconds"] == 0.25
    assert seen["prefold_prefill_depth_seconds"] == 125


def test_idle_blocks_are_told_by_tenant() -> None:
    seen = scrape(make_metrics())
    found = {
        name: {
            label: seen[f'prefold_tenant_{name}_blocks{{tenant="{label}"}}']
            for label in labels
        }
        for name, labels in (
            ("idle", ("acme", "blue", "other")),
            ("reserved", ("acme", "blue")),
            ("max_idle", ("acme", "blue")),
        )
    }
    assert found == {
        "idle": {"acme": 11, "blue": 21, "other": 31},
        "reserved": {"acme": 12, "blue": 22},
        "max_idle": {"acme": 13, "blue": 23},
    }
    assert seen["prefold_approved_idle_blocks"] == 41


def test_a_share_that_is_no_tenants_makes_no_label() -> None:
    shares = tuple(
        ShareOfPool(domain=path, num_idle=5, num_reserved=1, max_idle=9)
        for path in ("canary/one", "canary/two")
    )
    quotas = replace(SNAPSHOT.quotas, shares=shares)
    text = make_metrics().render(replace(SNAPSHOT, quotas=quotas)).decode()
    assert "canary" not in text
    assert parse_metrics(text)['prefold_tenant_idle_blocks{tenant="other"}'] == 31 + 10


def test_a_tenant_whose_name_is_other_shares_its_line() -> None:
    metrics = Metrics(tenants={"acme": "other"}, cost=PrefillCost())
    text = metrics.render(SNAPSHOT).decode()
    assert text.count('prefold_tenant_idle_blocks{tenant="other"}') == 1
    assert scrape(metrics)['prefold_tenant_idle_blocks{tenant="other"}'] == 31 + 11 + 21


def test_before_the_first_fit_there_are_no_costs() -> None:
    seen = scrape(make_metrics(), replace(SNAPSHOT, cost=None))
    assert not [name for name in seen if name.startswith("prefold_prefill_token")]
    assert not [name for name in seen if name.startswith("prefold_prefill_depth")]


def test_without_a_snapshot_there_are_no_stale_gauges() -> None:
    metrics = make_metrics()
    scrape(metrics)
    seen = scrape(metrics, None)
    assert seen["prefold_engine_alive"] == 0
    assert "prefold_queue_length" not in seen
    assert not [name for name in seen if name.startswith("prefold_blocks")]
    assert seen["prefold_evicted_blocks_total"] == 7


def test_a_scrape_that_reads_less_than_the_last_takes_nothing_back() -> None:
    metrics = make_metrics()
    scrape(metrics)
    fewer = replace(
        SNAPSHOT,
        num_preemptions=1,
        num_regretted_tokens=1,
        regretted_s=math.nan,
        cache=replace(CACHE, num_evicted_blocks=0),
    )
    seen = scrape(metrics, fewer)
    assert seen["prefold_evicted_blocks_total"] == 7
    assert seen["prefold_preemptions_total"] == 4
    assert seen["prefold_regretted_tokens_total"] == 600
    assert seen["prefold_regretted_prefill_seconds_total"] == 1.5
    assert errors(metrics) == 4
    assert scrape(metrics)["prefold_evicted_blocks_total"] == 7


@pytest.mark.parametrize("field", ["prompt", "cached", "reply"])
@pytest.mark.parametrize("bad", [*BAD, 0.5], ids=repr)
def test_a_bad_count_is_left_out_and_counted(field: str, bad: object) -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(**{field: bad}), options())  # type: ignore[arg-type]
    seen = scrape(metrics)
    assert errors(metrics) == 1
    assert total(seen, "prefold_prompt_tokens_total") == 0
    assert total(seen, "prefold_hit_tokens_total") == 0
    # It has ended all the same.
    assert seen['prefold_requests_total{outcome="finished"}'] == 1


def test_more_cached_tokens_than_prompt_tokens_are_an_error() -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(prompt=10, cached=10), options())
    assert errors(metrics) == 0
    metrics.on_finished(make_output(prompt=10, cached=11), options())
    assert errors(metrics) == 1


@pytest.mark.parametrize("field", ["ttft_s", "tpot_s"])
@pytest.mark.parametrize("bad", [bad for bad in BAD if bad is not None], ids=repr)
def test_a_bad_time_is_left_out_and_counted(field: str, bad: object) -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(**{field: bad}), options())  # type: ignore[arg-type]
    assert errors(metrics) == 1
    assert scrape(metrics)['prefold_hit_tokens_total{tenant="acme"}'] == 64


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_bad_step_is_left_out_and_counted(bad: object) -> None:
    metrics = make_metrics()
    metrics.on_step(bad, 20)  # type: ignore[arg-type]
    metrics.on_step(0.5, bad)  # type: ignore[arg-type]
    assert errors(metrics) == 2
    assert scrape(metrics)["prefold_steps_total"] == 0


NUMBERS = st.one_of(
    st.integers(), st.floats(allow_nan=True, allow_infinity=True), st.none(), st.booleans()
)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=6))
def test_no_counter_ever_decreases(values: list[tuple[object, ...]]) -> None:
    metrics = make_metrics()
    before = scrape(metrics)
    for first, second, third, fourth in values:
        metrics.on_finished(make_output(first, second, third, ttft_s=fourth), options())
        metrics.on_step(third, first)  # type: ignore[arg-type]
        snapshot = replace(
            SNAPSHOT,
            num_preemptions=first,  # type: ignore[arg-type]
            num_regretted_tokens=second,  # type: ignore[arg-type]
            regretted_s=third,  # type: ignore[arg-type]
            cache=replace(CACHE, num_evicted_blocks=second),  # type: ignore[arg-type]
        )
        after = scrape(metrics, snapshot)
        for name, value in before.items():
            if not name.startswith(("prefold_blocks", "prefold_queue", "prefold_running")):
                assert after[name] >= value, name
        before = after


def test_every_series_of_fixed_labels_is_there_from_the_start() -> None:
    seen = scrape(make_metrics())
    for outcome in ("finished", "aborted", "failed", "refused"):
        assert seen[f'prefold_requests_total{{outcome="{outcome}"}}'] == 0
    for hit in ("none", "partial", "full"):
        assert seen[f'prefold_time_to_first_token_seconds_count{{hit="{hit}"}}'] == 0
    for tenant in ("acme", "blue"):
        for name in ("prompt", "query", "hit", "completion"):
            assert seen[f'prefold_{name}_tokens_total{{tenant="{tenant}"}}'] == 0


def test_two_of_them_share_nothing() -> None:
    one, other = make_metrics(), make_metrics()
    one.on_finished(make_output(), options())
    assert total(scrape(other), "prefold_requests_total") == 0


def test_names_follow_the_conventions() -> None:
    text = make_metrics().render(SNAPSHOT).decode()
    types = dict(re.findall(r"^# TYPE (prefold_\S+) (\S+)$", text, re.MULTILINE))
    types = {name: kind for name, kind in types.items() if not name.endswith("_created")}
    for name, kind in types.items():
        assert re.fullmatch(r"prefold_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total"), name
    for name in types:
        if "time" in name:
            assert name.endswith("_seconds")


def test_the_documentation_lists_every_metric() -> None:
    text = make_metrics().render(SNAPSHOT, WHAT_IF).decode()
    names = set(re.findall(r"^# TYPE (prefold_\S+) ", text, re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    listed = re.findall(r"^\| `(prefold_[a-z_]+)", DOCS.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(names)


def test_nothing_of_a_reply_is_kept_or_shown() -> None:
    metrics = make_metrics()
    metrics.on_finished(make_output(), options())
    metrics.on_output(
        ExchangeId(text="abc", serial=1, tenant="acme"), make_output(), prompt=0
    )
    assert b"canary" not in metrics.render(SNAPSHOT)
    found = metrics.timings.find("abc", "acme")
    assert found
    assert "canary" not in repr(found)


def test_the_what_if_shows_what_is_known_of_it() -> None:
    def shown(what_if: WhatIf | None) -> dict[str, float]:
        samples = parse_metrics(make_metrics().render(SNAPSHOT, what_if).decode())
        return {name: it for name, it in samples.items() if "whatif" in name}

    rate, saved = (
        f'prefold_whatif_{name}{{factor="0.5"}}'
        for name in ("hit_ratio", "prefill_saved_seconds")
    )
    sampled = "prefold_whatif_sampled_blocks"
    assert shown(WHAT_IF) == {rate: 0.1, saved: 1.5, sampled: 9.0}
    assert shown(replace(WHAT_IF, has_cost=False)) == {rate: 0.1, sampled: 9.0}
    assert shown(replace(WHAT_IF, num_requests=0)) == shown(None) == {}
