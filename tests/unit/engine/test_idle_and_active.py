"""Cached blocks give way to active requests, as far as they are not reserved."""

from collections.abc import Sequence

import pytest

from prefold.cache import NO_CACHE, READ_WRITE, Access, QuotaSettings, Share
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.request import FinishReason, SamplingParams
from prefold.errors import RequestError
from prefold.eviction.cost import CostFit
from prefold.eviction.registry import POLICIES
from prefold.identity.domain import Domain
from support.fake_engine import FakeEngine, expected_reply

NUM_BLOCKS = 80
SIZE = 4
ACME, OTHER = Domain("acme"), Domain("other")


def prompt(number: int, num_tokens: int) -> list[int]:
    return [(number * 7 + at * at) % 61 for at in range(num_tokens)]


def options(domain: Domain, access: Access = READ_WRITE) -> RequestOptions:
    return RequestOptions(domain=domain, access=access, tenant=domain.path)


def run(engine: FakeEngine) -> list[FinishReason]:
    reasons = []
    while engine.num_open:
        engine.check_invariants()
        reasons += [output.finish_reason for output in engine.step()]
    engine.check_invariants()
    return reasons


def load(policy: str, access: Access, *, fills: bool) -> tuple[int, list[FinishReason]]:
    """Run requests that need 95 % of the pool at once; return preemptions and ends."""
    engine = FakeEngine(
        num_blocks=NUM_BLOCKS,
        block_size=SIZE,
        scheduler=SchedulerConfig(max_step_tokens=64, max_running=8),
        policy=policy,
    )
    if fills:
        for number in range(12):
            tokens = prompt(100 + number, 30)
            engine.submit(tokens, SamplingParams(max_tokens=2), options=options(ACME))
        run(engine)
        assert engine.cache.counts.free < NUM_BLOCKS // 10
    before = engine.counters.num_preemptions
    # Four at a time, each of 19 blocks: 76 of 80.
    for number in range(12):
        engine.submit(
            prompt(number, 60),
            SamplingParams(max_tokens=16),
            options=options(ACME, access),
        )
    reasons = run(engine)
    return engine.counters.num_preemptions - before, reasons


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_cache_costs_active_requests_nothing(policy: str) -> None:
    without, ends = load(policy, NO_CACHE, fills=False)
    with_cache, ends_with_cache = load(policy, READ_WRITE, fills=True)
    assert with_cache <= without
    assert ends_with_cache == ends == [FinishReason.LENGTH] * 12


def flood(engine: FakeEngine, domain: Domain, numbers: Sequence[int]) -> None:
    for number in numbers:
        engine.submit(
            prompt(number, 40), SamplingParams(max_tokens=1), options=options(domain)
        )
        run(engine)


def hit_rate(engine: FakeEngine) -> float:
    """Serve ten prompts of one tenant again, a flood of another between them."""
    hits = 0
    for number in range(10):
        flood(engine, OTHER, [1000 + 90 * number + at for at in range(10)])
        engine.submit(
            prompt(number % 2, 60), SamplingParams(max_tokens=1), options=options(ACME)
        )
        while engine.num_open:
            for output in engine.step():
                hits += output.usage.cached_tokens
    return hits / 600


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_reserved", [True, False])
def test_a_reservation_keeps_a_tenants_hits_while_another_floods_ten_pools(
    policy: str, *, is_reserved: bool
) -> None:
    shares = (Share(domain=ACME, reserved=0.4), Share(domain=OTHER))
    engine = FakeEngine(
        num_blocks=NUM_BLOCKS,
        block_size=SIZE,
        policy=policy,
        quotas=QuotaSettings(shares=shares if is_reserved else shares[1:]),
    )
    flood(engine, ACME, [])
    for number in (0, 1):
        engine.submit(
            prompt(number, 60), SamplingParams(max_tokens=1), options=options(ACME)
        )
    run(engine)
    # All but the last token, which is computed each time.
    best = 59 / 60
    if is_reserved:
        assert hit_rate(engine) >= best - 0.05
    else:
        assert hit_rate(engine) <= best - 0.3


def test_what_others_reserved_is_refused_at_once_with_the_numbers() -> None:
    engine = FakeEngine(
        num_blocks=NUM_BLOCKS,
        block_size=SIZE,
        quotas=QuotaSettings(shares=(Share(domain=ACME, reserved=0.5),)),
    )
    with pytest.raises(RequestError, match="40 blocks of 4 beside 40 that are pinned or"):
        engine.submit(prompt(1, 155), SamplingParams(max_tokens=5), options=options(OTHER))
    engine.submit(prompt(1, 155), SamplingParams(max_tokens=5), options=options(ACME))
    assert run(engine) == [FinishReason.LENGTH]


def test_requests_of_all_tenants_end_though_reservations_fill_up() -> None:
    shares = (Share(domain=ACME, reserved=0.4), Share(domain=OTHER, reserved=0.4))
    engine = FakeEngine(
        num_blocks=NUM_BLOCKS,
        block_size=SIZE,
        scheduler=SchedulerConfig(max_step_tokens=32, max_running=6),
        quotas=QuotaSettings(shares=shares),
    )
    domains = [ACME, OTHER, Domain("third")]
    prompts = {}
    for number in range(30):
        tokens = prompt(number, 20 + number % 5 * 8)
        request_id = engine.submit(
            tokens, SamplingParams(max_tokens=8), options=options(domains[number % 3])
        )
        prompts[request_id] = tokens
    while engine.num_open:
        engine.check_invariants()
        for output in engine.step():
            tokens = prompts.pop(output.request_id)
            assert list(output.token_ids) == expected_reply(tokens, 8)
    assert not prompts


def test_what_was_evicted_and_computed_again_is_counted() -> None:
    engine = FakeEngine(num_blocks=20, block_size=SIZE, policy="lru")
    engine.cache.cost.assume(CostFit(per_step=0.0, per_token=0.5, per_pair=0.0))
    flood(engine, ACME, [0, 1, 2, 0])
    first = engine.counters.num_regretted_tokens
    assert 0 < first <= 40
    assert engine.counters.regretted_s == pytest.approx(first * 0.5)
