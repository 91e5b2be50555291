"""Tenant limits: what a tenant may have open, waiting and spend, and when to come back.

A call takes a *ticket* before its body is read, and returns it when both its answer and
the engine are done with it, however they ended::

    open(tenant)                     one more open
    ticket.queue(replies, estimate)  as many open and waiting, the estimate is charged
    ticket.begin()                   one of them has its first token
    ticket.release()                 by the last holder: no longer open, the difference
                                     between the estimate and what was used is settled

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

from prefold.errors import (
    ConfigError,
    InvariantError,
    PrefoldError,
    RequestError,
    StateError,
)
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
    """One open call of a tenant. Returned by the last of those that hold it.

    Attributes:
        num_replies: Replies that it counts for; 1 until it is queued.
        num_waiting: Of those, the ones without a token.
    """

    __slots__ = (
        "_account",
        "_num_charged",
        "_num_holders",
        "_num_used",
        "is_queued",
        "num_replies",
        "num_waiting",
    )

    def __init__(self, account: _Account) -> None:
        self._account = account
        self._num_charged = 0
        self._num_used = 0
        self._num_holders = 1
        self.is_queued = False
        self.num_replies = 1
        self.num_waiting = 0

    @property
    def is_open(self) -> bool:
        """Whether somebody holds it."""
        return self._num_holders > 0

    def queue(self, num_replies: int, num_tokens: int) -> None:
        """Count for so many replies, which may come to so many tokens with their prompts.

        Raises:
            RequestError: The tenant may never have as many; nothing was charged.
            RateLimitedError: It is at one of its limits; nothing was charged.
            StateError: It was queued or returned before.
        """
        if self.is_queued or not self.is_open:
            raise StateError("the ticket was queued or returned before")
        num_tokens = min(max(num_tokens, 0), _MAX_TOKENS)
        self._account.admit(num_replies, num_tokens)
        self.is_queued = True
        self.num_replies = self.num_waiting = num_replies
        self._num_charged = num_tokens

    def begin(self) -> None:
        """Count one reply as waiting no longer; it has got its first token."""
        self._wait_for(max(self.num_waiting - 1, 0))

    def use(self, num_tokens: int) -> None:
        """Note tokens that the call came to."""
        self._num_used += max(num_tokens, 0)

    def hold(self) -> None:
        """Keep it open until one more ``release``.

        Raises:
            StateError: It was returned before.
        """
        if not self.is_open:
            raise StateError("the ticket was returned before")
        self._num_holders += 1

    def release(self) -> None:
        """Let go of it; the last one returns it.

        Raises:
            StateError: It was returned before; nothing changes.
        """
        if not self.is_open:
            raise StateError("the ticket was returned before")
        self._num_holders -= 1
        if self._num_holders:
            return
        self._wait_for(0)
        self._account.close(self)
        if self.is_queued and self._account.bucket is not None:
            self._account.bucket.settle(self._num_charged, self._num_used)

    def _wait_for(self, num_waiting: int) -> None:
        self._account.num_waiting -= self.num_waiting - num_waiting
        self.num_waiting = num_waiting


class TenantLimits:
    """Who may send another request. Owned by the server, used on its event loop only.

    Args:
        max_queued: Requests that may wait in the server; a tenant may take its share.
        clock: Seconds from any origin; never goes back.

    Invariants:
        - a tenant has at most ``max_concurrent`` replies open
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

    def open(self, tenant: TenantConfig) -> Ticket:
        """Let in a call of which nothing is known yet.

        Raises:
            RateLimitedError: The tenant has as many open as it may have.
        """
        account = self._accounts.get(tenant.name)
        if account is None:
            account = _Account(tenant, self._max_queued, self._clock)
            self._accounts[tenant.name] = account
        return account.open()

    def num_open(self, tenant_name: str) -> int:
        """Return how many replies of the tenant are open."""
        account = self._accounts.get(tenant_name)
        return 0 if account is None else account.num_replies

    def num_waiting(self, tenant_name: str) -> int:
        """Return how many of the queued ones have no token yet."""
        account = self._accounts.get(tenant_name)
        return 0 if account is None else account.num_waiting

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a count is not that of the tickets, or too high."""
        for account in self._accounts.values():
            account.check_invariants()


class _Account:
    """What one tenant has open and may still spend."""

    __slots__ = (
        "bucket",
        "max_waiting",
        "num_replies",
        "num_waiting",
        "tenant",
        "tickets",
    )

    def __init__(
        self, tenant: TenantConfig, max_queued: int, clock: Callable[[], float]
    ) -> None:
        self.tenant = tenant
        self.tickets: set[Ticket] = set()
        self.num_replies = 0
        self.num_waiting = 0
        #: None for all of the queue: that it is full is then the server's to say, which
        #: is overload and nothing that the tenant did. Never too few for one request.
        self.max_waiting: int | None = None
        if tenant.queue_share < 1:
            self.max_waiting = max(1, int(tenant.queue_share * max_queued))
        per_minute = tenant.tokens_per_minute
        self.bucket = None if per_minute is None else _TokenBucket(per_minute, clock)

    def open(self) -> Ticket:
        self._check_open(1)
        ticket = Ticket(self)
        self.tickets.add(ticket)
        self.num_replies += 1
        return ticket

    def close(self, ticket: Ticket) -> None:
        self.tickets.remove(ticket)
        self.num_replies -= ticket.num_replies

    def admit(self, num_replies: int, num_tokens: int) -> None:
        """Let an open call have so many replies, one of which it counts for already."""
        self._check_possible(num_replies)
        self._check_open(num_replies - 1)
        if self.max_waiting is not None and self.num_waiting + num_replies > (
            self.max_waiting
        ):
            raise RateLimitedError(
                f"{self.num_waiting} replies are waiting and the limit is "
                f"{self.max_waiting}: wait until one has got its first token",
                RETRY_SOON_S,
            )
        if self.bucket is not None:
            self._charge(self.bucket, num_tokens)
        self.num_replies += num_replies - 1
        self.num_waiting += num_replies

    def _check_open(self, num_new: int) -> None:
        if self.num_replies + num_new > self.tenant.max_concurrent:
            raise RateLimitedError(
                f"{self.num_replies} replies are being made and the limit is "
                f"{self.tenant.max_concurrent}: wait until one has ended",
                RETRY_SOON_S,
            )

    def _check_possible(self, num_replies: int) -> None:
        limit = self.tenant.max_concurrent
        if self.max_waiting is not None:
            limit = min(limit, self.max_waiting)
        if num_replies > limit:
            raise RequestError(
                f"{num_replies} replies are asked for, but no more than {limit} may be "
                "made at the same time; send fewer prompts together, or lower n"
            )

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
        if self.num_replies != sum(ticket.num_replies for ticket in self.tickets):
            raise InvariantError(f"tenant {name}'s open replies are counted wrongly")
        if self.num_replies > self.tenant.max_concurrent:
            raise InvariantError(f"tenant {name} has more replies open than it may have")
        if self.num_waiting != sum(ticket.num_waiting for ticket in self.tickets):
            raise InvariantError(f"tenant {name}'s waiting replies are counted wrongly")
        if self.max_waiting is not None and self.num_waiting > self.max_waiting:
            raise InvariantError(f"tenant {name} has more replies waiting than its share")
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
