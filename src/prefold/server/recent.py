"""Recent hits: how much of the last prompts hit, and how soon the first token came.

For whoever watches. Counters since the start are the metrics' business; these forget.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prefold.cache import MissKind
from prefold.engine.request import RequestOutput
from prefold.errors import InvariantError
from prefold.server.hits import HitClass, hit_class

#: Requests of each hit class whose times are kept.
MAX_TIMES = 500

#: The last minutes, cut into pieces of that many seconds.
BUCKET_S = 10.0
NUM_BUCKETS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class HitSums:
    """What some requests asked for, and what of it was cached.

    Attributes:
        age_s: Since the last moment that it may be about; 0 while it goes on.
    """

    age_s: float
    num_requests: int
    prompt_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenTimes:
    """Seconds to the first token of the last requests of one class; None without any."""

    hit: HitClass
    num_requests: int
    median_s: float | None
    p95_s: float | None


class RecentHits:
    """The last ten minutes of hits, and the last times to first token. One thread.

    Invariants: at most ``NUM_BUCKETS`` buckets, in the order of time, none with more hit
    than prompt tokens; at most ``MAX_TIMES`` times a class, none negative.
    """

    __slots__ = ("_buckets", "_clock", "_times")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Number of the bucket since the clock's zero; requests, prompt and hit tokens.
        self._buckets: deque[tuple[int, int, int, int]] = deque(maxlen=NUM_BUCKETS)
        self._times: dict[HitClass, deque[float]] = {
            hit: deque(maxlen=MAX_TIMES) for hit in HitClass
        }

    def note(self, output: RequestOutput) -> None:
        """Note a reply that ended. O(1).

        One that was never admitted, or did not read, looked nothing up.
        """
        miss, usage = output.miss_reason, output.usage
        if miss is None or miss.kind is MissKind.READ_OFF:
            return
        if not 0 <= usage.cached_tokens <= usage.prompt_tokens:
            return  # the metrics count such a one as an error
        number = self._number()
        requests = prompt = hits = 0
        if self._buckets and self._buckets[-1][0] >= number:
            number, requests, prompt, hits = self._buckets.pop()
        self._buckets.append(
            (
                number,
                requests + 1,
                prompt + usage.prompt_tokens,
                hits + usage.cached_tokens,
            )
        )
        ttft_s = output.timing.ttft_s
        if ttft_s is not None and 0 <= ttft_s < math.inf:
            self._times[hit_class(usage)].append(ttft_s)

    def sums(self) -> list[HitSums]:
        """Return the pieces of the last ten minutes that had requests, oldest first."""
        now = self._number()
        return [
            HitSums(
                age_s=BUCKET_S * (now - number),
                num_requests=requests,
                prompt_tokens=prompt,
                hit_tokens=hits,
            )
            for number, requests, prompt, hits in self._buckets
            if number > now - NUM_BUCKETS
        ]

    def first_tokens(self) -> list[FirstTokenTimes]:
        """Return the times by hit class. O(times)."""
        return [
            FirstTokenTimes(
                hit=hit,
                num_requests=len(times),
                median_s=_quantile(times, 0.5),
                p95_s=_quantile(times, 0.95),
            )
            for hit, times in self._times.items()
        ]

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless what is kept is in order and within bounds."""
        numbers = [number for number, *_ in self._buckets]
        if numbers != sorted(set(numbers)) or len(numbers) > NUM_BUCKETS:
            raise InvariantError("the buckets are too many, or out of order")
        if any(not 0 <= hits <= prompt for *_, prompt, hits in self._buckets):
            raise InvariantError("more was hit than was asked for")
        if any(len(times) > MAX_TIMES for times in self._times.values()):
            raise InvariantError("more times are kept than may be")
        if any(each < 0 for times in self._times.values() for each in times):
            raise InvariantError("a time is negative")

    def _number(self) -> int:
        return math.floor(self._clock() / BUCKET_S)


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` of all are no larger than."""
    if not values:
        return None
    return sorted(values)[math.ceil(share * len(values)) - 1]
