"""Tenant limits against a model that recomputes every bucket from its whole history."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefold.errors import RequestError, StateError
from prefold.server.config import TenantConfig
from prefold.server.limits import RateLimitedError, TenantLimits, Ticket
from support.settable_clock import SettableClock

MAX_QUEUED = 4
TENANTS = (
    TenantConfig(name="a", max_concurrent=3, tokens_per_minute=60, queue_share=0.5),
    TenantConfig(name="b", max_concurrent=6, tokens_per_minute=7),
    TenantConfig(name="c", max_concurrent=5, queue_share=0.75),
)
MAX_WAITING = {"a": 2, "b": 6, "c": 3}


@dataclass
class NaiveTicket:
    """What a ticket stands for."""

    num_replies: int = 1
    num_waiting: int = 0
    num_holders: int = 1
    charged: int | None = None
    used: int = 0


@dataclass
class NaiveTenant:
    """What happened: charges are negative, refunds positive, in seconds since 0."""

    history: list[tuple[int, int]] = field(default_factory=list)
    tickets: dict[Ticket, NaiveTicket] = field(default_factory=dict)

    @property
    def num_replies(self) -> int:
        return sum(ticket.num_replies for ticket in self.tickets.values())

    @property
    def num_waiting(self) -> int:
        return sum(ticket.num_waiting for ticket in self.tickets.values())

    def level(self, per_minute: int, now: int) -> Fraction:
        level, then = Fraction(per_minute), 0
        for at, change in [*self.history, (now, 0)]:
            level = min(
                Fraction(per_minute), level + Fraction((at - then) * per_minute, 60)
            )
            level = min(Fraction(per_minute), level + change)
            then = at
        return level


class LimitsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = SettableClock()
        self.now = 0
        self.limits = TenantLimits(max_queued=MAX_QUEUED, clock=self.clock)
        self.model = {tenant.name: NaiveTenant() for tenant in TENANTS}
        self.returned: list[Ticket] = []

    @rule(tenant=st.sampled_from(TENANTS))
    def open(self, tenant: TenantConfig) -> None:
        model = self.model[tenant.name]
        if model.num_replies >= tenant.max_concurrent:
            with pytest.raises(RateLimitedError) as caught:
                self.limits.open(tenant)
            assert caught.value.retry_after_s == 1.0
            return
        model.tickets[self.limits.open(tenant)] = NaiveTicket()

    @precondition(lambda self: self._open())
    @rule(data=st.data(), num_replies=st.integers(1, 4), num_tokens=st.integers(0, 70))
    def queue(self, data: st.DataObject, num_replies: int, num_tokens: int) -> None:
        tenant, ticket = data.draw(st.sampled_from(self._open()))
        model, rate = self.model[tenant.name], tenant.tokens_per_minute
        known = model.tickets[ticket]
        if known.charged is not None:
            with pytest.raises(StateError):
                ticket.queue(num_replies, num_tokens)
            return
        most_waiting = MAX_WAITING[tenant.name]
        if num_replies > min(tenant.max_concurrent, most_waiting):
            with pytest.raises(RequestError):
                ticket.queue(num_replies, num_tokens)
            return
        retry_after: Fraction | None = None
        if (
            model.num_replies + num_replies - 1 > tenant.max_concurrent
            or model.num_waiting + num_replies > most_waiting
        ):
            retry_after = Fraction(1)
        elif rate is not None:
            missing = min(num_tokens, rate) - model.level(rate, self.now)
            if missing > 0:
                retry_after = missing * 60 / rate
        if retry_after is not None:
            with pytest.raises(RateLimitedError) as caught:
                ticket.queue(num_replies, num_tokens)
            assert caught.value.retry_after_s == pytest.approx(float(retry_after))
            return
        ticket.queue(num_replies, num_tokens)
        model.history.append((self.now, -num_tokens))
        known.num_replies = known.num_waiting = num_replies
        known.charged = num_tokens

    def _open(self) -> list[tuple[TenantConfig, Ticket]]:
        return [(t, ticket) for t in TENANTS for ticket in self.model[t.name].tickets]

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        tenant, ticket = data.draw(st.sampled_from(self._open()))
        known = self.model[tenant.name].tickets[ticket]
        ticket.begin()
        known.num_waiting = max(known.num_waiting - 1, 0)

    @precondition(lambda self: self._open())
    @rule(data=st.data(), num_tokens=st.integers(0, 80))
    def use(self, data: st.DataObject, num_tokens: int) -> None:
        tenant, ticket = data.draw(st.sampled_from(self._open()))
        ticket.use(num_tokens)
        self.model[tenant.name].tickets[ticket].used += num_tokens

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        tenant, ticket = data.draw(st.sampled_from(self._open()))
        ticket.hold()
        self.model[tenant.name].tickets[ticket].num_holders += 1

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        tenant, ticket = data.draw(st.sampled_from(self._open()))
        model = self.model[tenant.name]
        known = model.tickets[ticket]
        ticket.release()
        known.num_holders -= 1
        if known.num_holders:
            return
        del model.tickets[ticket]
        if known.charged is not None:
            model.history.append((self.now, known.charged - known.used))
        self.returned.append(ticket)

    @precondition(lambda self: self.returned)
    @rule(data=st.data())
    def return_again(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.returned))
        for misuse in (ticket.release, ticket.hold, lambda: ticket.queue(1, 1)):
            with pytest.raises(StateError):
                misuse()
        ticket.begin()

    @rule(seconds=st.sampled_from([1, 3, 20, 61]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.clock.advance(seconds)

    @invariant()
    def agrees_with_model(self) -> None:
        self.limits.check_invariants()
        for name, model in self.model.items():
            assert self.limits.num_open(name) == model.num_replies
            assert self.limits.num_waiting(name) == model.num_waiting


TestTenantLimits = LimitsMachine.TestCase
