from __future__ import annotations

import pytest

from prefold.errors import ConfigError, InvariantError, StateError
from prefold.server.config import TenantConfig
from prefold.server.limits import RateLimitedError, TenantLimits
from support.settable_clock import SettableClock

UNLIMITED = TenantConfig(name="unlimited")
PAIR = TenantConfig(name="pair", max_concurrent=2)
#: One token a second.
SLOW = TenantConfig(name="slow", tokens_per_minute=60)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(500.0)


@pytest.fixture
def limits(clock: SettableClock) -> TenantLimits:
    return TenantLimits(max_queued=8, clock=clock)


def _refuse(limits: TenantLimits, tenant: TenantConfig, num_tokens: int = 1) -> float:
    before = limits.num_open(tenant.name), limits.num_waiting(tenant.name)
    with pytest.raises(RateLimitedError) as caught:
        limits.enter(tenant, num_tokens)
    assert before == (limits.num_open(tenant.name), limits.num_waiting(tenant.name))
    limits.check_invariants()
    assert caught.value.retry_after_s > 0
    return caught.value.retry_after_s


def test_open_requests_are_limited(limits: TenantLimits) -> None:
    first, second = limits.enter(PAIR, 1), limits.enter(PAIR, 1)
    first.stop_waiting()
    assert _refuse(limits, PAIR) == 1.0
    assert limits.num_open("pair") == 2
    second.leave(1)
    limits.enter(PAIR, 1)
    _refuse(limits, PAIR)


def test_tenants_do_not_take_from_each_other(limits: TenantLimits) -> None:
    for _ in range(2):
        limits.enter(PAIR, 1)
    limits.enter(SLOW, 60)
    _refuse(limits, PAIR)
    _refuse(limits, SLOW)
    other = TenantConfig(name="other", max_concurrent=1, tokens_per_minute=60)
    limits.enter(other, 60)


def test_a_ticket_is_returned_exactly_once(limits: TenantLimits) -> None:
    ticket = limits.enter(SLOW, 60)
    ticket.leave(60)
    with pytest.raises(StateError, match="returned before"):
        ticket.leave(0)
    assert limits.num_open("slow") == limits.num_waiting("slow") == 0
    _refuse(limits, SLOW)
    limits.check_invariants()


def test_waiting_ends_once_and_for_good(limits: TenantLimits) -> None:
    first, second = limits.enter(UNLIMITED, 1), limits.enter(UNLIMITED, 1)
    assert limits.num_waiting("unlimited") == 2
    for _ in range(2):
        first.stop_waiting()
        assert limits.num_waiting("unlimited") == 1
    first.leave(1)
    first.stop_waiting()
    assert limits.num_waiting("unlimited") == 1
    second.leave(1)
    assert limits.num_waiting("unlimited") == 0
    limits.check_invariants()


@pytest.mark.parametrize(
    ("share", "num_waiting"), [(0.99, 7), (0.5, 4), (0.49, 3), (0.125, 1), (0.001, 1)]
)
def test_a_tenant_waits_in_its_share_of_the_queue(
    limits: TenantLimits, share: float, num_waiting: int
) -> None:
    tenant = TenantConfig(name="t", queue_share=share)
    tickets = [limits.enter(tenant, 1) for _ in range(num_waiting)]
    assert _refuse(limits, tenant) == 1.0
    tickets[0].stop_waiting()
    limits.enter(tenant, 1)
    _refuse(limits, tenant)
    tickets[-1].leave(0)
    if num_waiting > 1:
        limits.enter(tenant, 1)


def test_who_may_take_all_of_the_queue_is_never_told_that_it_is_full(
    limits: TenantLimits,
) -> None:
    # That is overload, which the engine reports: another status and nobody's fault.
    for _ in range(20):
        limits.enter(UNLIMITED, 1)


def test_tokens_come_back_at_their_rate(limits: TenantLimits, clock: SettableClock) -> None:
    limits.enter(SLOW, 50)
    assert _refuse(limits, SLOW, 30) == pytest.approx(20.0)
    clock.advance(19.0)
    assert _refuse(limits, SLOW, 30) == pytest.approx(1.0)
    limits.enter(SLOW, 29)
    clock.advance(1000.0)
    limits.enter(SLOW, 60)
    assert _refuse(limits, SLOW, 1) == pytest.approx(1.0)


@pytest.mark.parametrize("num_tokens", [1, 7, 33, 59, 60, 61, 10_000])
@pytest.mark.parametrize("per_minute", [1, 7, 60, 90_000])
def test_whoever_waits_as_told_is_let_in(
    limits: TenantLimits, clock: SettableClock, num_tokens: int, per_minute: int
) -> None:
    tenant = TenantConfig(name="t", tokens_per_minute=per_minute)
    limits.enter(tenant, per_minute)
    clock.advance(0.1)
    clock.advance(_refuse(limits, tenant, max(num_tokens, per_minute // 2)))
    limits.enter(tenant, max(num_tokens, per_minute // 2))


def test_what_was_not_used_is_given_back(limits: TenantLimits) -> None:
    ticket = limits.enter(SLOW, 60)
    _refuse(limits, SLOW, 20)
    ticket.leave(40)
    limits.enter(SLOW, 20)
    _refuse(limits, SLOW, 1)


def test_a_refund_does_not_overfill(limits: TenantLimits, clock: SettableClock) -> None:
    ticket = limits.enter(SLOW, 60)
    clock.advance(60.0)
    ticket.leave(0)
    limits.check_invariants()
    limits.enter(SLOW, 60)
    _refuse(limits, SLOW, 1)


def test_what_was_used_beyond_the_estimate_is_owed(
    limits: TenantLimits, clock: SettableClock
) -> None:
    limits.enter(SLOW, 0).leave(90)
    assert _refuse(limits, SLOW, 1) == pytest.approx(31.0)
    clock.advance(31.0)
    limits.enter(SLOW, 1)


def test_a_request_of_more_than_a_minute_waits_for_a_full_bucket(
    limits: TenantLimits, clock: SettableClock
) -> None:
    limits.enter(SLOW, 1)
    assert _refuse(limits, SLOW, 600) == pytest.approx(1.0)
    clock.advance(1.0)
    limits.enter(SLOW, 600)
    assert _refuse(limits, SLOW, 1) == pytest.approx(541.0)


@pytest.mark.parametrize("num_tokens", [-5, 0])
def test_no_estimate_charges_less_than_nothing(
    limits: TenantLimits, num_tokens: int
) -> None:
    limits.enter(SLOW, num_tokens).leave(num_tokens)
    limits.enter(SLOW, 60)
    _refuse(limits, SLOW, 1)


def test_no_request_gives_back_more_than_it_took(limits: TenantLimits) -> None:
    first, _second = limits.enter(SLOW, 30), limits.enter(SLOW, 30)
    first.leave(-30)
    limits.enter(SLOW, 30)
    _refuse(limits, SLOW, 1)


def test_absurd_estimates_are_no_fault(limits: TenantLimits) -> None:
    limits.enter(SLOW, 10**400)
    assert _refuse(limits, SLOW, 10**400) < 1e16


def test_without_a_rate_tokens_do_not_matter(limits: TenantLimits) -> None:
    for _ in range(8):
        limits.enter(UNLIMITED, 10**9)


def test_a_refusal_charges_nothing(limits: TenantLimits) -> None:
    tenant = TenantConfig(name="t", max_concurrent=1, tokens_per_minute=60)
    ticket = limits.enter(tenant, 10)
    for _ in range(100):
        _refuse(limits, tenant, 10)
    ticket.leave(10)
    for _ in range(100):
        _refuse(limits, tenant, 51)
    limits.enter(tenant, 50)


def test_messages_say_what_to_do(limits: TenantLimits) -> None:
    tenant = TenantConfig(name="secret-name", max_concurrent=1, tokens_per_minute=60)
    ticket = limits.enter(tenant, 60)
    with pytest.raises(RateLimitedError, match=r"1 requests are open .* wait until one"):
        limits.enter(tenant, 1)
    ticket.leave(60)
    with pytest.raises(RateLimitedError, match=r"60 tokens a minute: .* in 5 s") as caught:
        limits.enter(tenant, 5)
    assert "secret-name" not in str(caught.value)


def test_an_unknown_tenant_has_nothing_open(limits: TenantLimits) -> None:
    assert limits.num_open("nobody") == limits.num_waiting("nobody") == 0


def test_a_queue_has_room() -> None:
    with pytest.raises(ConfigError, match="max_queued must be at least 1"):
        TenantLimits(max_queued=0)


def test_the_check_finds_broken_state(limits: TenantLimits) -> None:
    first, second = limits.enter(SLOW, 10), limits.enter(SLOW, 10)
    account = limits._accounts["slow"]
    for owner, name, value in (
        (account, "num_waiting", 0),
        (account, "max_waiting", 1),
        (account, "tenant", TenantConfig(name="slow", max_concurrent=1)),
        (account, "tickets", {first}),
        (account.bucket, "level", 61.0),
        (first, "is_open", False),
        (second, "is_waiting", False),
    ):
        before = getattr(owner, name)
        setattr(owner, name, value)
        with pytest.raises(InvariantError, match="tenant slow"):
            limits.check_invariants()
        setattr(owner, name, before)
    limits.check_invariants()
