"""Worth meter: sums over the requests that have ended, by tenant, in bounded memory.

Milliseconds are not summed but tokens, and pairs of a token and one before it, which the
cost of prefill is linear in: so what was counted before the cost was known is priced, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prefold.cache import CostFit
from prefold.cache.explain import MissKind, MissReason
from prefold.engine.request import Usage
from prefold.errors import InvariantError
from prefold.eviction.cost import num_pairs

#: Lengths up to this one are counted one by one; above, eight to a doubling.
_EXACT = 16
_CLASSES_A_DOUBLING = 8
_NUM_CLASSES = _EXACT + _CLASSES_A_DOUBLING * 28


class LengthCounts:
    """Counts of token lengths, from which quantiles are read to within an eighth."""

    __slots__ = ("_counts", "num")

    def __init__(self) -> None:
        self._counts = [0] * _NUM_CLASSES
        self.num = 0

    def note(self, length: int) -> None:
        """Count one."""
        self._counts[min(_class_of(length), _NUM_CLASSES - 1)] += 1
        self.num += 1

    def quantile(self, share: float) -> int:
        """Return the smallest length of the class in which the quantile lies; 0 of none."""
        left = share * self.num
        for place, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return _least_of(place)
        return 0


def _class_of(length: int) -> int:
    if length < _EXACT:
        return length
    doubling = length.bit_length() - 5
    return _EXACT + doubling * _CLASSES_A_DOUBLING + (length >> (doubling + 1)) - 8


def _least_of(place: int) -> int:
    if place < _EXACT:
        return place
    doubling, step = divmod(place - _EXACT, _CLASSES_A_DOUBLING)
    return (8 + step) << (doubling + 1)


class PricedTokens:
    """Tokens and pairs, to be priced when the cost is known."""

    __slots__ = ("pairs", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.pairs = 0.0

    def note(self, start: int, end: int) -> None:
        """Count the positions ``start`` to ``end`` - 1."""
        self.tokens += end - start
        self.pairs += num_pairs(start, end)

    def ms(self, fit: CostFit) -> float:
        """Return what computing them takes."""
        return 1000 * (fit.per_token * self.tokens + fit.per_pair * self.pairs)


class TenantSums:
    """Sums of one tenant's requests.

    Attributes:
        prompts: Of all prompt tokens.
        hits: Of those that were cached.
        evicted: Of those that had been, and were computed again.
        hit_lengths: Of each request.
        prompt_lengths: Of each request.

    Invariants: no more is hit than was asked for; lengths are of every request.
    """

    __slots__ = (
        "evicted",
        "hit_lengths",
        "hits",
        "num_requests",
        "prompt_lengths",
        "prompts",
    )

    def __init__(self) -> None:
        self.num_requests = 0
        self.prompts = PricedTokens()
        self.hits = PricedTokens()
        self.evicted = PricedTokens()
        self.hit_lengths = LengthCounts()
        self.prompt_lengths = LengthCounts()

    def note(self, usage: Usage, num_evicted: int) -> None:
        """Count a request, of which so many tokens after the hit had been evicted."""
        self.num_requests += 1
        self.prompts.note(0, usage.prompt_tokens)
        self.hits.note(0, usage.cached_tokens)
        end = min(usage.cached_tokens + num_evicted, usage.prompt_tokens)
        self.evicted.note(usage.cached_tokens, end)
        self.hit_lengths.note(usage.cached_tokens)
        self.prompt_lengths.note(usage.prompt_tokens)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the sums cannot be those of requests."""
        if self.hits.tokens + self.evicted.tokens > self.prompts.tokens:
            raise InvariantError("more was hit or evicted than asked for")
        if not self.num_requests == self.hit_lengths.num == self.prompt_lengths.num:
            raise InvariantError("not every request's lengths are counted")


class WorthMeter:
    """Told of requests and steps on the engine's thread; read there, too.

    Attributes:
        since: When it began, as Unix time.
        busy_s: That steps took.
        total: Of all requests.
        by_tenant: Of those of the tenants that are known.
    """

    __slots__ = ("_clock", "busy_s", "by_tenant", "since", "total")

    def __init__(
        self, tenants: Iterable[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self.since = clock()
        self.busy_s = 0.0
        self.total = TenantSums()
        self.by_tenant = {name: TenantSums() for name in sorted(tenants)}

    @property
    def span_s(self) -> float:
        """Seconds since it began."""
        return max(self._clock() - self.since, 0.0)

    def on_step(self, seconds: float) -> None:
        """Count a step."""
        self.busy_s += seconds

    def on_query(
        self, usage: Usage, tenant: str, miss: MissReason, block_size: int
    ) -> None:
        """Count a request that looked its prompt up."""
        num_evicted = 0
        if miss.kind is MissKind.EVICTED:
            num_evicted = miss.num_lost_blocks * block_size
        self.total.note(usage, num_evicted)
        mine = self.by_tenant.get(tenant)
        if mine is not None:
            mine.note(usage, num_evicted)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a tenant has more than all together."""
        for each in (self.total, *self.by_tenant.values()):
            each.check_invariants()
        counted = sum(each.num_requests for each in self.by_tenant.values())
        if counted > self.total.num_requests:
            raise InvariantError("tenants have more requests than there were")
