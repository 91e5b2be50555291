"""Tenant limits: what a tenant may have open, waiting and spend, and when to come back.

A request takes a *ticket* before the engine sees it, and returns it when it has ended,
however it ended::

    enter(tenant, estimate)    one more open and waiting, the estimate is charged
    ticket.stop_waiting()      its first token is there
    ticket.leave(actual)       no longer open, the difference to the estimate is settled

Tokens are a bucket that holds a minute's worth and fills at a steady rate. A request is
let in if its estimate is there, or, for one of more than a minute's worth, if the bucket
is full; the bucket may be in debt afterwards. So no request is locked out for ever, and
from any full bucket the tenant is charged at most

    a minute's worth + rate x time + the excess of one such request

Nothing here waits: every call is short, and all of them belong on one event loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from prefold.errors import ConfigError, InvariantError, PrefoldError, StateError
from prefold.server.config import TenantConfig

#: Advice where nobody can know: when another request of the tenant ends.
RETRY_SOON_S = 1.0

#: Tokens by which a bucket may be short because its level is a float: whoever waited as
#: long as told is let in.
_ROUNDING = 1e-6

#: Estimates are cut here, far above any context, so that they fit into a float.
_MAX_TOKENS = 2**48


class RateLimitedError(PrefoldError):
    """The tenant has as much as it may have; others are served.

    Attributes:
        retry_after_s: Seconds after which the same request may be let in.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Ticket:
    """One open request of a tenant. Returned exactly once, by ``leave``."""

    __slots__ = ("_account", "_num_charged", "is_open", "is_waiting")

    def __init__(self, account: _Account, num_charged: int) -> None:
        self._account = account
        self._num_charged = num_charged
        self.is_open = True
        self.is_waiting = True

    def stop_waiting(self) -> None:
        """Count the request as waiting no longer; it has got its first token.

        A second call does nothing, nor does one after the end.
        """
        if self.is_waiting:
            self.is_waiting = False
            self._account.num_waiting -= 1

    def leave(self, actual_tokens: int) -> None:
        """Return the ticket, of a request that came to so many prompt and reply tokens.

        Raises:
            StateError: It was returned before; nothing changes.
        """
        if not self.is_open:
            raise StateError("the ticket was returned before")
        self.stop_waiting()
        self.is_open = False
        self._account.tickets.remove(self)
        if self._account.bucket is not None:
            self._account.bucket.settle(self._num_charged, max(actual_tokens, 0))


class TenantLimits:
    """Who may send another request. Owned by the server, used on its event loop only.

    Args:
        max_queued: Requests that may wait in the server; a tenant may take its share.
        clock: Seconds from any origin; never goes back.

    Invariants:
        - a tenant has at most ``max_concurrent`` tickets, all open
        - those of them that wait are counted, and at most its share of ``max_queued``
        - no bucket holds more than a minute's worth
    """

    __slots__ = ("_accounts", "_clock", "_max_queued")

    def __init__(
        self, *, max_queued: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_queued < 1:
            raise ConfigError(f"max_queued must be at least 1, got {max_queued}")
        self._max_queued = max_queued
        self._clock = clock
        # Made at a tenant's first request; tenants come from the configuration, so there
        # are never more of them than it has.
        self._accounts: dict[str, _Account] = {}

    def enter(self, tenant: TenantConfig, num_tokens: int) -> Ticket:
        """Let in a request that may come to ``num_tokens`` prompt and reply tokens.

        Raises:
            RateLimitedError: The tenant is at one of its limits; nothing was charged.
        """
        account = self._accounts.get(tenant.name)
        if account is None:
            account = _Account(tenant, self._max_queued, self._clock)
            self._accounts[tenant.name] = account
        return account.enter(min(max(num_tokens, 0), _MAX_TOKENS))

    def num_open(self, tenant_name: str) -> int:
        """Return how many requests of the tenant are open."""
        account = self._accounts.get(tenant_name)
        return 0 if account is None else len(account.tickets)

    def num_waiting(self, tenant_name: str) -> int:
        """Return how many of the open ones have no token yet."""
        account = self._accounts.get(tenant_name)
        return 0 if account is None else account.num_waiting

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a count is not that of the tickets, or too high."""
        for account in self._accounts.values():
            account.check_invariants()


class _Account:
    """What one tenant has open and may still spend."""

    __slots__ = ("bucket", "max_waiting", "num_waiting", "tenant", "tickets")

    def __init__(
        self, tenant: TenantConfig, max_queued: int, clock: Callable[[], float]
    ) -> None:
        self.tenant = tenant
        self.tickets: set[Ticket] = set()
        self.num_waiting = 0
        #: None for all of the queue: that it is full is then the server's to say, which
        #: is overload and nothing that the tenant did. Never too few for one request.
        self.max_waiting: int | None = None
        if tenant.queue_share < 1:
            self.max_waiting = max(1, int(tenant.queue_share * max_queued))
        per_minute = tenant.tokens_per_minute
        self.bucket = None if per_minute is None else _TokenBucket(per_minute, clock)

    def enter(self, num_tokens: int) -> Ticket:
        if len(self.tickets) >= self.tenant.max_concurrent:
            raise RateLimitedError(
                f"{len(self.tickets)} requests are open and the limit is "
                f"{self.tenant.max_concurrent}: wait until one has ended",
                RETRY_SOON_S,
            )
        if self.max_waiting is not None and self.num_waiting >= self.max_waiting:
            raise RateLimitedError(
                f"{self.num_waiting} requests are waiting and the limit is "
                f"{self.max_waiting}: wait until one has got its first token",
                RETRY_SOON_S,
            )
        if self.bucket is not None:
            self._charge(self.bucket, num_tokens)
        ticket = Ticket(self, num_tokens)
        self.tickets.add(ticket)
        self.num_waiting += 1
        return ticket

    def _charge(self, bucket: _TokenBucket, num_tokens: int) -> None:
        wait_s = bucket.try_take(num_tokens)
        if wait_s is not None:
            raise RateLimitedError(
                f"the request may take {num_tokens} tokens and the limit is "
                f"{bucket.capacity} tokens a minute: lower max_tokens, or try again in "
                f"{math.ceil(wait_s)} s",
                wait_s,
            )

    def check_invariants(self) -> None:
        name = self.tenant.name
        if any(not ticket.is_open for ticket in self.tickets):
            raise InvariantError(f"tenant {name} keeps a ticket that was returned")
        if len(self.tickets) > self.tenant.max_concurrent:
            raise InvariantError(f"tenant {name} has more requests open than it may have")
        if self.num_waiting != sum(ticket.is_waiting for ticket in self.tickets):
            raise InvariantError(f"tenant {name}'s waiting requests are counted wrongly")
        if self.max_waiting is not None and self.num_waiting > self.max_waiting:
            raise InvariantError(f"tenant {name} has more requests waiting than its share")
        if self.bucket is not None and self.bucket.level > self.bucket.capacity:
            raise InvariantError(f"tenant {name}'s bucket holds more than fits into it")


class _TokenBucket:
    """Tokens that may be spent at once; full at first, refilled at a steady rate."""

    __slots__ = ("_clock", "_filled_at", "capacity", "level")

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.capacity = per_minute
        self._clock = clock
        self._filled_at = clock()
        #: As of the last call; negative while in debt.
        self.level = float(per_minute)

    def try_take(self, num_tokens: int) -> float | None:
        """Take the tokens and return None, or return the seconds until it could work."""
        self._fill()
        missing = min(num_tokens, self.capacity) - self.level
        if missing > _ROUNDING:
            return missing * 60.0 / self.capacity
        self.level -= num_tokens
        return None

    def settle(self, num_taken: int, num_used: int) -> None:
        """Give back what was taken and not used, or take what was used beyond it."""
        self._fill()
        self.level = min(float(self.capacity), self.level + num_taken - num_used)

    def _fill(self) -> None:
        now = self._clock()
        passed_s = now - self._filled_at
        self._filled_at = now
        self.level = min(float(self.capacity), self.level + passed_s * self.capacity / 60.0)
