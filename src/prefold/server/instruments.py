"""Instruments: every metric there is, with its name, unit, labels and meaning.

Labels take values from fixed lists only: nothing that a client wrote ever becomes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prefold.cache import CostFit, MissKind
from prefold.server.hits import HitClass
from prefold.server.snapshot import DEPTH_TOKENS, EngineSnapshot, QuotasOfPool
from prefold.server.what_if_gauges import WhatIfGauges

#: Stands for tenants, routes and statuses that are not on the list.
OTHER = "other"

_LENGTHS = (0, *(16 * 2**power for power in range(14)))
_FIRST_TOKEN = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0),
)
_NEXT_TOKEN = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 5.0)


_TENANT = ("tenant",)


class Outcome(Enum):
    """How a request ended; each ends in exactly one of these."""

    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"
    #: The engine never took it in.
    REFUSED = "refused"


class SnapshotGauges(Collector):
    """The gauges of one snapshot; none without one, rather than stale ones.

    Attributes:
        snapshot: What the next scrape shows; None where the engine cannot be asked.
    """

    def __init__(self, tenants: Mapping[str, str]) -> None:
        """Show nothing yet.

        Args:
            tenants: The names that may become labels, by the paths of their domains.
        """
        self._tenants = dict(tenants)
        self.snapshot: EngineSnapshot | None = None

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples, for the registry to know the names."""
        return (*self._families(), *_share_families(), *_cost_families())

    def collect(self) -> Iterator[Metric]:
        blocks, pinned, approvals, queue, running, alive = self._families()
        alive.add_metric([], float(self.snapshot is not None))
        yield alive
        if self.snapshot is None:
            return
        counts = self.snapshot.cache.blocks
        blocks.add_metric(["free"], counts.free)
        blocks.add_metric(["private"], counts.private)
        blocks.add_metric(["shared"], counts.shared)
        blocks.add_metric(["idle"], counts.idle)
        pinned.add_metric([], self.snapshot.num_pinned_blocks)
        approvals.add_metric([], self.snapshot.num_approvals)
        queue.add_metric([], self.snapshot.num_waiting)
        running.add_metric([], self.snapshot.num_running)
        yield from (blocks, pinned, approvals, queue, running)
        yield from self._shares(self.snapshot.quotas)
        yield from _costs(self.snapshot.cost)

    def _shares(self, quotas: QuotasOfPool) -> Iterator[Metric]:
        idle, approved, reserved, most = _share_families()
        # Shares of domains that are no tenant's, if there are any, count as one.
        num_idle = {OTHER: quotas.num_others_idle}
        for share in quotas.shares:
            label = self._tenants.get(share.domain)
            if label is None:
                num_idle[OTHER] += share.num_idle
                continue
            # A tenant that has that name stands in the same line.
            num_idle[label] = num_idle.get(label, 0) + share.num_idle
            reserved.add_metric([label], share.num_reserved)
            most.add_metric([label], share.max_idle)
        for label, count in num_idle.items():
            idle.add_metric([label], count)
        approved.add_metric([], quotas.num_approved_idle)
        yield from (idle, approved, reserved, most)

    def _families(self) -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily(
                "prefold_blocks",
                "Blocks by state: free, private to one running sequence, shared (cached "
                "and in use), idle (cached and reclaimable).",
                labels=["state"],
            ),
            GaugeMetricFamily(
                "prefold_pinned_blocks",
                "Of all blocks, those that approvals keep from eviction.",
            ),
            GaugeMetricFamily("prefold_approvals", "Approved prefixes."),
            GaugeMetricFamily(
                "prefold_queue_length",
                "Sequences that wait for blocks or a turn, preempted ones included.",
            ),
            GaugeMetricFamily("prefold_running_sequences", "Sequences that hold blocks."),
            GaugeMetricFamily(
                "prefold_engine_alive",
                "1 while the engine answers; at 0 the gauges that need it are missing.",
            ),
        )


def _share_families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "prefold_tenant_idle_blocks",
            "Of all idle blocks, those that count for a tenant; other is everybody else.",
            labels=_TENANT,
        ),
        GaugeMetricFamily(
            "prefold_approved_idle_blocks",
            "Of all idle blocks, those of approved prefixes, which are no tenant's.",
        ),
        GaugeMetricFamily(
            "prefold_tenant_reserved_blocks",
            "Idle blocks of a tenant that nobody else's need takes.",
            labels=_TENANT,
        ),
        GaugeMetricFamily(
            "prefold_tenant_max_idle_blocks",
            "Idle blocks that a tenant may have.",
            labels=_TENANT,
        ),
    )


def _cost_families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "prefold_prefill_token_seconds",
            "Seconds that computing one token takes at the beginning of a prompt, fitted "
            "to the last steps; missing before there were enough.",
        ),
        GaugeMetricFamily(
            "prefold_prefill_depth_seconds",
            "Seconds that a token takes beyond that for each 1,000 tokens before it.",
        ),
    )


def _costs(fit: CostFit | None) -> Iterator[Metric]:
    token, depth = _cost_families()
    if fit is not None:
        token.add_metric([], fit.per_token)
        depth.add_metric([], DEPTH_TOKENS * fit.per_pair)
    yield from (token, depth)


class Instruments:
    """All metrics, in a registry of their own. Owned by ``Metrics``."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        """Begin at zero.

        Args:
            tenants: The names that may become labels, by the paths of their domains.
        """
        self.registry = CollectorRegistry()
        self.gauges = SnapshotGauges(tenants)
        self.registry.register(self.gauges)
        self.what_if = WhatIfGauges()
        self.registry.register(self.what_if)
        self.requests = self._counter(
            "prefold_requests_total",
            "Sequences by how they ended; a request for n choices has n of them. Refused "
            "ones never reached the engine, and count once a request.",
            ["outcome"],
        )
        self.adapter_requests = self._counter(
            "prefold_adapter_requests_total",
            "Of those that reached the engine, the ones with an adapter, by its name.",
            ["adapter"],
        )
        self.prompt_tokens = self._counter(
            "prefold_prompt_tokens_total", "Prompt tokens of sequences that ended.", _TENANT
        )
        self.query_tokens = self._counter(
            "prefold_query_tokens_total",
            "Of those, the tokens that were looked up in the cache.",
            _TENANT,
        )
        self.hit_tokens = self._counter(
            "prefold_hit_tokens_total",
            "Of those, the tokens that were found there; by first admissions, so that "
            "coming back after a preemption is no second hit.",
            _TENANT,
        )
        self.misses = self._counter(
            "prefold_misses_total",
            "Sequences that were admitted, by why no more of their prompt hit; complete "
            "where nothing was missed.",
            ["reason", *_TENANT],
        )
        self.completion_tokens = self._counter(
            "prefold_completion_tokens_total",
            "Reply tokens of sequences that ended.",
            _TENANT,
        )
        self.hit_length = self._histogram(
            "prefold_hit_length_tokens",
            "Hit tokens of each sequence that looked its prompt up.",
            buckets=_LENGTHS,
        )
        self.first_token = self._histogram(
            "prefold_time_to_first_token_seconds",
            "From submission to the first token, by what part of the prompt hit: none; "
            "full: all that an equal prompt can hit; partial.",
            ["hit"],
            buckets=_FIRST_TOKEN,
        )
        self.next_token = self._histogram(
            "prefold_time_per_output_token_seconds",
            "Mean distance of a sequence's tokens after the first, by what part of the "
            "prompt hit.",
            ["hit"],
            buckets=_NEXT_TOKEN,
        )
        self.computed_tokens = self._counter(
            "prefold_computed_tokens_total", "Positions computed, of prompts and replies."
        )
        self.steps = self._counter("prefold_steps_total", "Steps that computed something.")
        self.step_seconds = self._counter(
            "prefold_step_seconds_total", "Time that those steps took."
        )
        self.seconds_saved = self._counter(
            "prefold_prefill_seconds_saved_total",
            "An estimate: what computing the hit tokens would have taken at their depth, "
            "by a fit to the last steps that computed prompts. Hits before the first fit "
            "are added when it is there.",
        )
        self.regretted_tokens = self._counter(
            "prefold_regretted_tokens_total",
            "Prompt tokens computed that had been cached before, and were evicted.",
        )
        self.regretted_seconds = self._counter(
            "prefold_regretted_prefill_seconds_total",
            "An estimate by the same fit: what computing those took; none before there is "
            "one.",
        )
        self.evicted_blocks = self._counter(
            "prefold_evicted_blocks_total", "Idle blocks dropped to make room."
        )
        self.preemptions = self._counter(
            "prefold_preemptions_total", "Times a running sequence gave its blocks back."
        )
        self.responses = self._counter(
            "prefold_http_responses_total",
            "HTTP responses by plane, route template and status.",
            ["plane", "route", "status"],
        )
        self.errors = self._counter(
            "prefold_metric_errors_total",
            "Values that no metric could take, such as negative counts. They were left "
            "out, and their requests completed.",
        )
        self._begin_at_zero(sorted(tenants.values()))

    def _begin_at_zero(self, tenants: Iterable[str]) -> None:
        """Show every series from the start: a rate needs the zero before the first one."""
        for outcome in Outcome:
            self.requests.labels(outcome=outcome.value)
        for hit in HitClass:
            self.first_token.labels(hit=hit.value)
            self.next_token.labels(hit=hit.value)
        for tenant in tenants:
            for counter in (self.prompt_tokens, self.query_tokens, self.hit_tokens):
                counter.labels(tenant=tenant)
            self.completion_tokens.labels(tenant=tenant)
            for kind in MissKind:
                self.misses.labels(reason=kind.value, tenant=tenant)

    def _counter(self, name: str, meaning: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _histogram(
        self,
        name: str,
        meaning: str,
        labels: Iterable[str] = (),
        *,
        buckets: tuple[float, ...],
    ) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)
