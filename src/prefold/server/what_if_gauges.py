"""Gauges of the what-if, for a scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prefold.advisor.what_if import WhatIf

_LABELS = ("factor",)


class WhatIfGauges(Collector):
    """The answers of one moment; none rather than stale ones or those of no request.

    Attributes:
        what_if: What the next scrape shows; None where the engine cannot be asked.
    """

    def __init__(self) -> None:
        self.what_if: WhatIf | None = None

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, for the registry to know the names."""
        return _families()

    def collect(self) -> Iterator[Metric]:
        what_if = self.what_if
        if what_if is None or what_if.num_requests == 0:
            return
        rate, saved, sampled = _families()
        for point in what_if.points:
            label = [f"{point.factor:g}"]
            rate.add_metric(label, point.hit_rate)
            if what_if.has_cost:
                saved.add_metric(label, point.saved_s)
        sampled.add_metric([], what_if.num_sampled)
        yield from (rate, saved, sampled)


def _families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "prefold_whatif_hit_ratio",
            "Hit tokens over prompt tokens at so many times the cache's size, since the "
            "model was loaded; measured at 1, else estimated.",
            labels=_LABELS,
        ),
        GaugeMetricFamily(
            "prefold_whatif_prefill_saved_seconds",
            "Prefill seconds that these hits save; missing before the cost is known.",
            labels=_LABELS,
        ),
        GaugeMetricFamily(
            "prefold_whatif_sampled_blocks", "Blocks that the estimate follows."
        ),
    )
