"""Bench summary: many answers as a few figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, floor

from prefold.cli.bench_client import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A mean and percentiles, in the unit of the values."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A load's figures.

    Attributes:
        num_failed: Of the requests, those without a complete answer; the other figures
            leave them out.
        errors: Why, and how often.
        duration_s: From the first request to the last answer.
        cached_tokens: As far as they are reported; None where the server does not.
        reply_tokens: The same.
    """

    num_requests: int
    num_failed: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    prompt_tokens: int | None
    cached_tokens: int | None
    reply_tokens: int | None
    reply_tokens_per_s: float | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    total_s: Distribution | None

    @property
    def cached_share(self) -> float | None:
        """Cached tokens over prompt tokens."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    def to_json(self) -> dict[str, object]:
        """Return it as a value of plain numbers and texts."""
        return {**asdict(self), "cached_share": self.cached_share}


def summarize(answers: Sequence[Answer], duration_s: float) -> Summary:
    """Return the figures of a load that took so long."""
    good = [answer for answer in answers if answer.error is None]
    failed = [answer.error for answer in answers if answer.error is not None]
    reply_tokens = _sum(answer.completion_tokens for answer in good)
    return Summary(
        num_requests=len(answers),
        num_failed=len(failed),
        errors=dict(Counter(failed).most_common(10)),
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s if duration_s > 0 else 0.0,
        prompt_tokens=_sum(answer.prompt_tokens for answer in good),
        cached_tokens=_sum(answer.cached_tokens for answer in good),
        reply_tokens=reply_tokens,
        reply_tokens_per_s=(
            None if reply_tokens is None or duration_s <= 0 else reply_tokens / duration_s
        ),
        ttft_s=distribution(answer.ttft_s for answer in good),
        tpot_s=distribution(answer.tpot_s for answer in good),
        total_s=distribution(answer.total_s for answer in good),
    )


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Return mean and percentiles of the values there are; None if there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Distribution(
        mean=sum(known) / len(known),
        p50=percentile(known, 50),
        p90=percentile(known, 90),
        p99=percentile(known, 99),
        max=known[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, on the line between the nearest two."""
    place = (len(ordered) - 1) * percent / 100
    below, above = ordered[floor(place)], ordered[ceil(place)]
    return below + (above - below) * (place - floor(place))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
