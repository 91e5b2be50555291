"""Tenant limits against a model that recomputes every bucket from its whole history."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefold.errors import StateError
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
class NaiveTenant:
    """What happened: charges are negative, refunds positive, in seconds since 0."""

    history: list[tuple[int, int]] = field(default_factory=list)
    is_waiting_by_ticket: dict[Ticket, bool] = field(default_factory=dict)
    charged_by_ticket: dict[Ticket, int] = field(default_factory=dict)

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

    @rule(tenant=st.sampled_from(TENANTS), num_tokens=st.integers(0, 70))
    def enter(self, tenant: TenantConfig, num_tokens: int) -> None:
        model = self.model[tenant.name]
        waiting = sum(model.is_waiting_by_ticket.values())
        retry_after: Fraction | None = None
        is_full = len(model.is_waiting_by_ticket) >= tenant.max_concurrent
        if is_full or waiting >= MAX_WAITING[tenant.name]:
            retry_after = Fraction(1)
        elif tenant.tokens_per_minute is not None:
            rate = tenant.tokens_per_minute
            missing = min(num_tokens, rate) - model.level(rate, self.now)
            if missing > 0:
                retry_after = missing * 60 / rate
        if retry_after is not None:
            with pytest.raises(RateLimitedError) as caught:
                self.limits.enter(tenant, num_tokens)
            assert caught.value.retry_after_s == pytest.approx(float(retry_after))
            return
        ticket = self.limits.enter(tenant, num_tokens)
        model.history.append((self.now, -num_tokens))
        model.charged_by_ticket[ticket] = num_tokens
        model.is_waiting_by_ticket[ticket] = True

    def _open(self) -> list[tuple[NaiveTenant, Ticket]]:
        return [(m, t) for m in self.model.values() for t in m.is_waiting_by_ticket]

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        model, ticket = data.draw(st.sampled_from(self._open()))
        ticket.stop_waiting()
        model.is_waiting_by_ticket[ticket] = False

    @precondition(lambda self: self._open())
    @rule(data=st.data(), num_tokens=st.integers(0, 80))
    def leave(self, data: st.DataObject, num_tokens: int) -> None:
        model, ticket = data.draw(st.sampled_from(self._open()))
        ticket.leave(num_tokens)
        del model.is_waiting_by_ticket[ticket]
        model.history.append((self.now, model.charged_by_ticket.pop(ticket) - num_tokens))
        self.returned.append(ticket)

    @precondition(lambda self: self.returned)
    @rule(data=st.data(), num_tokens=st.integers(0, 80))
    def leave_again(self, data: st.DataObject, num_tokens: int) -> None:
        ticket = data.draw(st.sampled_from(self.returned))
        with pytest.raises(StateError):
            ticket.leave(num_tokens)
        ticket.stop_waiting()

    @rule(seconds=st.sampled_from([1, 3, 20, 61]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.clock.advance(seconds)

    @invariant()
    def agrees_with_model(self) -> None:
        self.limits.check_invariants()
        for name, model in self.model.items():
            waiting = model.is_waiting_by_ticket
            assert self.limits.num_open(name) == len(waiting)
            assert self.limits.num_waiting(name) == sum(waiting.values())


TestTenantLimits = LimitsMachine.TestCase
