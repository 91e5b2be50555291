"""Advice: what a prefix cache is worth on recorded traffic, as values to be shown.

::

    saved    prefill that hits spare, at a given cost of prefill
    held     bytes cached, summed over the seconds, or averaged over the time of the trace
    evicted  what was computed again because it had gone, as prefill
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prefold.advisor.verdict import Load, Thresholds, Verdict
from prefold.advisor.worth import Reuse
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Of hit lengths, those that are told.
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What things cost on the machine that the traffic is for.

    Attributes:
        prefill: Of tokens.
        decode_ms: Of a reply's token: of a step, divided by the replies it goes on with.
        bytes_per_token: Of KV.
        thresholds: From when a cache pays.

    Raises:
        InvalidInputError: One is negative, or no number, or a token takes no bytes.
    """

    prefill: CostFit
    decode_ms: float
    bytes_per_token: float
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        fit = self.prefill
        costs = (fit.per_step, fit.per_token, fit.per_pair, self.decode_ms)
        if not all(0 <= each < np.inf for each in costs):
            raise InvalidInputError("what a token costs must be a number, 0 or above")
        if not 0 < self.bytes_per_token < np.inf:
            raise InvalidInputError(
                f"a token's KV must have more than 0 bytes, got {self.bytes_per_token}"
            )

    def prefill_ms(self, begin: float, end: float) -> float:
        """Return what computing the positions ``begin`` to ``end`` - 1 takes."""
        num_pairs = (end - begin) * max(begin + end - 1, 0.0) / 2
        return 1000 * (
            self.prefill.per_token * (end - begin) + self.prefill.per_pair * num_pairs
        )

    def sum_ms(self, lengths: Ints | Floats) -> float:
        """Return what computing so many first positions takes, one entry a request."""
        its = lengths.astype(np.float64)
        num_pairs = float((its * (its - 1)).sum()) / 2
        return 1000 * (
            self.prefill.per_token * float(its.sum()) + self.prefill.per_pair * num_pairs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HitLengths:
    """How long hits are, in tokens; of all requests, those that hit nothing included.

    Attributes:
        mean: Of all.
        largest: Of all.
        quantiles: Those of ``QUANTILES``.
        counts: Requests by hit length: 0, 1 to 1, 2 to 3, 4 to 7 and so on.
    """

    mean: float
    largest: int
    quantiles: dict[str, float]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, hit_tokens: Ints) -> HitLengths:
        """Return the distribution of these; of no requests, all is 0."""
        if len(hit_tokens) == 0:
            return cls(
                mean=0.0, largest=0, quantiles=dict.fromkeys(QUANTILES, 0.0), counts=()
            )
        levels = np.quantile(hit_tokens, list(QUANTILES.values()))
        # frexp's exponent is the number of binary digits.
        classes = np.frexp(hit_tokens.astype(np.float64))[1]
        return cls(
            mean=float(hit_tokens.mean()),
            largest=int(hit_tokens.max()),
            quantiles=dict(zip(QUANTILES, levels.tolist(), strict=True)),
            counts=tuple(np.bincount(classes).tolist()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a cache did for some requests.

    Attributes:
        name: Whose; None for those without a name, or for all.
        load: Its sums.
        hit_lengths: In tokens.
        evicted_ms: Prefill of what was computed again because it had been evicted.
        verdict: On these requests alone.
    """

    name: str | None
    load: Load
    hit_lengths: HitLengths
    evicted_ms: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixWorth:
    """Tokens that are always used together, and what keeping them is worth.

    Attributes:
        first_request: The first one that has them, counted from 1 in order of arrival.
        begin: Position of its first token.
        end: Position after its last.
        num_uses: Requests that have them.
        saved_ms: What hits of them spared.
        held_byte_s: Of its own blocks; what comes before is another prefix's.
        net_ms: Saved, less what the memory held should have saved.
        reuse: As a steady rate; None without a time span.
        break_even_per_s: None without a time span.
    """

    first_request: int
    begin: int
    end: int
    num_uses: int
    saved_ms: float
    held_byte_s: float
    net_ms: float
    reuse: Reuse | None
    break_even_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPoint:
    """What LRU makes of one size of cache.

    Attributes:
        num_bytes: The size.
        num_blocks: The same in blocks of the trace.
        hit_rate: Hit tokens over prompt tokens.
        saved_ms: Prefill spared.
        held_bytes: On average.
        net_ms_per_s: Saved a second, less what the memory held should save; None without
            a time span.
    """

    num_bytes: float
    num_blocks: int
    hit_rate: float
    saved_ms: float
    held_bytes: float
    net_ms_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All that is said of one trace.

    Attributes:
        verdict: On all requests, with a cache of the given size or of the best one.
        verdict_bytes: That size.
        total: Of all requests.
        tenants: Of each; empty where none is named.
        best: Prefixes whose keeping is worth most, the best first.
        worst: Those whose keeping is worth least, the worst first.
        curve: By size of cache, the smallest first.
        capacity_bytes: Of the cache that the figures are of; None if it holds all.
        peak_bytes: Most held at a time.
    """

    name: str
    prices: Prices
    verdict: Verdict
    verdict_bytes: float
    total: Figures
    tenants: tuple[Figures, ...]
    best: tuple[PrefixWorth, ...]
    worst: tuple[PrefixWorth, ...]
    curve: tuple[CapacityPoint, ...]
    capacity_bytes: float | None
    peak_bytes: float
