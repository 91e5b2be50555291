from __future__ import annotations

import pytest

from prefold.errors import ConfigError, InvariantError, RequestError, StateError
from prefold.server.config import TenantConfig
from prefold.server.limits import RateLimitedError, TenantLimits, Ticket
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


def enter(
    limits: TenantLimits, tenant: TenantConfig, num_tokens: int, num_replies: int = 1
) -> Ticket:
    """Open a call and queue it; if that is refused, nothing stays open."""
    ticket = limits.open(tenant)
    try:
        ticket.queue(num_replies, num_tokens)
    except BaseException:
        ticket.release()
        raise
    return ticket


def leave(ticket: Ticket, num_tokens: int) -> None:
    ticket.use(num_tokens)
    ticket.release()


def _refuse(limits: TenantLimits, tenant: TenantConfig, num_tokens: int = 1) -> float:
    before = limits.num_open(tenant.name), limits.num_waiting(tenant.name)
    with pytest.raises(RateLimitedError) as caught:
        enter(limits, tenant, num_tokens)
    assert before == (limits.num_open(tenant.name), limits.num_waiting(tenant.name))
    limits.check_invariants()
    assert caught.value.retry_after_s > 0
    return caught.value.retry_after_s


def test_open_requests_are_limited(limits: TenantLimits) -> None:
    first, second = enter(limits, PAIR, 1), enter(limits, PAIR, 1)
    first.begin()
    assert _refuse(limits, PAIR) == 1.0
    assert limits.num_open("pair") == 2
    leave(second, 1)
    enter(limits, PAIR, 1)
    _refuse(limits, PAIR)


def test_tenants_do_not_take_from_each_other(limits: TenantLimits) -> None:
    for _ in range(2):
        enter(limits, PAIR, 1)
    enter(limits, SLOW, 60)
    _refuse(limits, PAIR)
    _refuse(limits, SLOW)
    other = TenantConfig(name="other", max_concurrent=1, tokens_per_minute=60)
    enter(limits, other, 60)


def test_a_ticket_is_returned_exactly_once(limits: TenantLimits) -> None:
    ticket = enter(limits, SLOW, 60)
    leave(ticket, 60)
    with pytest.raises(StateError, match="returned before"):
        ticket.release()
    with pytest.raises(StateError, match="returned before"):
        ticket.hold()
    with pytest.raises(StateError, match="returned before"):
        ticket.queue(1, 1)
    assert limits.num_open("slow") == limits.num_waiting("slow") == 0
    _refuse(limits, SLOW)
    limits.check_invariants()


def test_waiting_ends_once_and_for_good(limits: TenantLimits) -> None:
    first, second = enter(limits, UNLIMITED, 1), enter(limits, UNLIMITED, 1)
    assert limits.num_waiting("unlimited") == 2
    for _ in range(2):
        first.begin()
        assert limits.num_waiting("unlimited") == 1
    leave(first, 1)
    first.begin()
    assert limits.num_waiting("unlimited") == 1
    leave(second, 1)
    assert limits.num_waiting("unlimited") == 0
    limits.check_invariants()


@pytest.mark.parametrize(
    ("share", "num_waiting"), [(0.99, 7), (0.5, 4), (0.49, 3), (0.125, 1), (0.001, 1)]
)
def test_a_tenant_waits_in_its_share_of_the_queue(
    limits: TenantLimits, share: float, num_waiting: int
) -> None:
    tenant = TenantConfig(name="t", queue_share=share)
    tickets = [enter(limits, tenant, 1) for _ in range(num_waiting)]
    assert _refuse(limits, tenant) == 1.0
    tickets[0].begin()
    enter(limits, tenant, 1)
    _refuse(limits, tenant)
    leave(tickets[-1], 0)
    if num_waiting > 1:
        enter(limits, tenant, 1)


def test_who_may_take_all_of_the_queue_is_never_told_that_it_is_full(
    limits: TenantLimits,
) -> None:
    # That is overload, which the engine reports: another status and nobody's fault.
    for _ in range(20):
        enter(limits, UNLIMITED, 1)


def test_tokens_come_back_at_their_rate(limits: TenantLimits, clock: SettableClock) -> None:
    enter(limits, SLOW, 50)
    assert _refuse(limits, SLOW, 30) == pytest.approx(20.0)
    clock.advance(19.0)
    assert _refuse(limits, SLOW, 30) == pytest.approx(1.0)
    enter(limits, SLOW, 29)
    clock.advance(1000.0)
    enter(limits, SLOW, 60)
    assert _refuse(limits, SLOW, 1) == pytest.approx(1.0)


@pytest.mark.parametrize("num_tokens", [1, 7, 33, 59, 60, 61, 10_000])
@pytest.mark.parametrize("per_minute", [1, 7, 60, 90_000])
def test_whoever_waits_as_told_is_let_in(
    limits: TenantLimits, clock: SettableClock, num_tokens: int, per_minute: int
) -> None:
    tenant = TenantConfig(name="t", tokens_per_minute=per_minute)
    enter(limits, tenant, per_minute)
    clock.advance(0.1)
    clock.advance(_refuse(limits, tenant, max(num_tokens, per_minute // 2)))
    enter(limits, tenant, max(num_tokens, per_minute // 2))


def test_what_was_not_used_is_given_back(limits: TenantLimits) -> None:
    ticket = enter(limits, SLOW, 60)
    _refuse(limits, SLOW, 20)
    leave(ticket, 40)
    enter(limits, SLOW, 20)
    _refuse(limits, SLOW, 1)


def test_a_refund_does_not_overfill(limits: TenantLimits, clock: SettableClock) -> None:
    ticket = enter(limits, SLOW, 60)
    clock.advance(60.0)
    leave(ticket, 0)
    limits.check_invariants()
    enter(limits, SLOW, 60)
    _refuse(limits, SLOW, 1)


def test_what_was_used_beyond_the_estimate_is_owed(
    limits: TenantLimits, clock: SettableClock
) -> None:
    leave(enter(limits, SLOW, 0), 90)
    assert _refuse(limits, SLOW, 1) == pytest.approx(31.0)
    clock.advance(31.0)
    enter(limits, SLOW, 1)


def test_a_request_of_more_than_a_minute_waits_for_a_full_bucket(
    limits: TenantLimits, clock: SettableClock
) -> None:
    enter(limits, SLOW, 1)
    assert _refuse(limits, SLOW, 600) == pytest.approx(1.0)
    clock.advance(1.0)
    enter(limits, SLOW, 600)
    assert _refuse(limits, SLOW, 1) == pytest.approx(541.0)


@pytest.mark.parametrize("num_tokens", [-5, 0])
def test_no_estimate_charges_less_than_nothing(
    limits: TenantLimits, num_tokens: int
) -> None:
    leave(enter(limits, SLOW, num_tokens), num_tokens)
    enter(limits, SLOW, 60)
    _refuse(limits, SLOW, 1)


def test_no_request_gives_back_more_than_it_took(limits: TenantLimits) -> None:
    first, _second = enter(limits, SLOW, 30), enter(limits, SLOW, 30)
    leave(first, -30)
    enter(limits, SLOW, 30)
    _refuse(limits, SLOW, 1)


def test_absurd_estimates_are_no_fault(limits: TenantLimits) -> None:
    enter(limits, SLOW, 10**400)
    assert _refuse(limits, SLOW, 10**400) < 1e16


def test_without_a_rate_tokens_do_not_matter(limits: TenantLimits) -> None:
    for _ in range(8):
        enter(limits, UNLIMITED, 10**9)


def test_a_refusal_charges_nothing(limits: TenantLimits) -> None:
    tenant = TenantConfig(name="t", max_concurrent=1, tokens_per_minute=60)
    ticket = enter(limits, tenant, 10)
    for _ in range(100):
        _refuse(limits, tenant, 10)
    leave(ticket, 10)
    for _ in range(100):
        _refuse(limits, tenant, 51)
    enter(limits, tenant, 50)


def test_messages_say_what_to_do(limits: TenantLimits) -> None:
    tenant = TenantConfig(name="secret-name", max_concurrent=1, tokens_per_minute=60)
    ticket = enter(limits, tenant, 60)
    with pytest.raises(RateLimitedError, match=r"1 replies are being made .* until one"):
        enter(limits, tenant, 1)
    leave(ticket, 60)
    with pytest.raises(RateLimitedError, match=r"60 tokens a minute: .* in 5 s") as caught:
        enter(limits, tenant, 5)
    assert "secret-name" not in str(caught.value)


def test_an_unknown_tenant_has_nothing_open(limits: TenantLimits) -> None:
    assert limits.num_open("nobody") == limits.num_waiting("nobody") == 0


def test_a_queue_has_room() -> None:
    with pytest.raises(ConfigError, match="max_queued must be at least 1"):
        TenantLimits(max_queued=0)


def test_the_check_finds_broken_state(limits: TenantLimits) -> None:
    first, second = enter(limits, SLOW, 10), enter(limits, SLOW, 10)
    account = limits._accounts["slow"]
    for owner, name, value in (
        (account, "num_waiting", 0),
        (account, "max_waiting", 1),
        (account, "tenant", TenantConfig(name="slow", max_concurrent=1)),
        (account, "tickets", {first}),
        (account.bucket, "level", 61.0),
        (account, "num_replies", 1),
        (first, "_num_holders", 0),
        (first, "num_replies", 2),
        (second, "num_waiting", 0),
    ):
        before = getattr(owner, name)
        setattr(owner, name, value)
        with pytest.raises(InvariantError, match="tenant slow"):
            limits.check_invariants()
        setattr(owner, name, before)
    limits.check_invariants()


def test_a_call_counts_before_it_is_queued(limits: TenantLimits) -> None:
    first, second = limits.open(PAIR), limits.open(PAIR)
    with pytest.raises(RateLimitedError, match="wait until one has ended"):
        limits.open(PAIR)
    assert limits.num_open("pair") == 2
    assert limits.num_waiting("pair") == 0
    first.release()
    second.queue(2, 1)
    assert limits.num_open("pair") == limits.num_waiting("pair") == 2
    limits.check_invariants()


def test_every_reply_counts(limits: TenantLimits) -> None:
    tenant = TenantConfig(name="t", max_concurrent=6, queue_share=0.5)
    call = enter(limits, tenant, 1, 3)
    assert limits.num_open("t") == limits.num_waiting("t") == 3
    opened = limits.open(tenant)
    with pytest.raises(RateLimitedError, match="3 replies are waiting and the limit is 4"):
        opened.queue(2, 1)
    call.begin()
    with pytest.raises(RateLimitedError, match="4 replies are being made"):
        opened.queue(4, 1)
    opened.queue(2, 1)
    assert (limits.num_open("t"), limits.num_waiting("t")) == (5, 4)
    for _ in range(5):
        call.begin()
    assert (limits.num_open("t"), limits.num_waiting("t")) == (5, 2)
    call.release()
    assert (limits.num_open("t"), limits.num_waiting("t")) == (2, 2)
    limits.check_invariants()


@pytest.mark.parametrize(("num_replies", "share"), [(7, 1.0), (5, 0.5)])
def test_more_replies_than_ever_possible_are_no_matter_of_waiting(
    limits: TenantLimits, num_replies: int, share: float
) -> None:
    tenant = TenantConfig(name="t", max_concurrent=6, queue_share=share)
    limits.open(tenant)
    with pytest.raises(RequestError, match=r"fewer prompts together, or lower n"):
        enter(limits, tenant, 1, num_replies)
    assert limits.num_open("t") == 1


def test_the_last_holder_returns_it(limits: TenantLimits) -> None:
    ticket = enter(limits, SLOW, 60)
    ticket.hold()
    ticket.use(20)
    ticket.release()
    assert limits.num_open("slow") == limits.num_waiting("slow") == 1
    ticket.use(10)
    ticket.release()
    assert limits.num_open("slow") == limits.num_waiting("slow") == 0
    enter(limits, SLOW, 30)
    _refuse(limits, SLOW, 1)


def test_a_ticket_is_queued_once(limits: TenantLimits) -> None:
    ticket = enter(limits, SLOW, 20)
    with pytest.raises(StateError, match="queued or returned before"):
        ticket.queue(1, 20)
    ticket.release()
    enter(limits, SLOW, 60)


def test_a_call_that_was_never_queued_is_not_charged(limits: TenantLimits) -> None:
    ticket = limits.open(SLOW)
    ticket.release()
    enter(limits, SLOW, 60)
