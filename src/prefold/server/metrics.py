"""Metrics: counts what the engine and the planes report, for Prometheus to read.

Nothing here raises and no counter decreases, whatever values come in: a value that a
metric cannot take is counted as an error and left out, and its request goes on.

===========  ================================================================
engine       ``on_step``, ``on_finished``, ``on_used``: on its thread
planes       ``on_response``, ``on_refused``, ``on_asked``, ``on_output``: on the loop
a scrape     ``render``, with a snapshot taken on the engine's thread
===========  ================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import Counter, Histogram, generate_latest

from prefold.advisor.what_if import WhatIf
from prefold.engine.config import RequestOptions
from prefold.engine.observer import UsedPath
from prefold.engine.request import FinishReason, RequestOutput, Usage
from prefold.eviction.cost import PrefillCost, num_pairs
from prefold.server.hits import hit_class
from prefold.server.instruments import OTHER, Instruments, Outcome
from prefold.server.journal import Journal
from prefold.server.known_names import KnownNames
from prefold.server.observer import AskedPrompt, ExchangeId, Plane
from prefold.server.recent import RecentHits
from prefold.server.snapshot import EngineSnapshot
from prefold.server.timings import RecentTimings
from prefold.server.what_if import LiveWhatIf
from prefold.server.worth_meter import WorthMeter

_OUTCOMES = {
    FinishReason.STOP: Outcome.FINISHED,
    FinishReason.LENGTH: Outcome.FINISHED,
    FinishReason.ABORTED: Outcome.ABORTED,
    FinishReason.FAILED: Outcome.FAILED,
}

#: No figure of a request or a step comes near.
_LIMIT = 2.0**53

#: What the text that ``render`` returns is.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Observer of the engine and of both planes.

    Attributes:
        timings: Of the last requests; used on the event loop only.
        journal: What they asked for, and why they missed; on the event loop too.
        what_if: What other cache sizes would do; used on the engine's thread only. None
            where nobody wants to know.
        worth: What requests came to; used on the engine's thread only.
        recent: Hits of the last minutes; on the event loop too.
    """

    def __init__(
        self,
        *,
        tenants: Mapping[str, str],
        cost: PrefillCost,
        what_if: LiveWhatIf | None = None,
        block_size: int = 16,
    ) -> None:
        """Begin at zero.

        Args:
            tenants: The names that may become labels, by the paths of their domains.
            cost: What prefill takes; read on the engine's thread only.
            what_if: Told what requests used.
            block_size: Tokens in a block of the cache.
        """
        self.what_if = what_if
        self._tenants = frozenset(tenants.values())
        self._instruments = Instruments(tenants)
        self._adapters = KnownNames(OTHER)
        self._cost = cost
        self._block_size = block_size
        # Hits that came before the cost was known: tokens, and pairs of one with another
        # before it.
        self._unpriced = (0, 0.0)
        self._num_evicted_blocks = 0.0
        self._num_preemptions = 0.0
        self._num_regretted_tokens = 0.0
        self._regretted_s = 0.0
        self.timings = RecentTimings()
        self.journal = Journal()
        self.worth = WorthMeter(self._tenants)
        self.recent = RecentHits()

    # -- the engine ----------------------------------------------------------------

    def on_step(self, seconds: float, num_computed_tokens: int) -> None:
        """Note a step."""
        if not _is_amount(seconds) or not _is_count(num_computed_tokens):
            self._note_error()
            return
        mine = self._instruments
        mine.steps.inc()
        mine.step_seconds.inc(seconds)
        mine.computed_tokens.inc(num_computed_tokens)
        self.worth.on_step(seconds)
        # The engine tells the cost about a step before it tells anybody else.
        self._price_hits()

    def on_finished(self, output: RequestOutput, options: RequestOptions) -> None:
        """Note that a sequence ended."""
        outcome = _OUTCOMES[output.finish_reason]
        self._instruments.requests.labels(outcome=outcome.value).inc()
        if options.adapter is not None:
            label = self._adapters.label(options.adapter)
            self._instruments.adapter_requests.labels(adapter=label).inc()
        if not _is_plausible(output.usage):
            self._note_error()
            return
        # One that was never admitted did not look anything up.
        is_query = options.access.read and output.miss_reason is not None
        self._count_tokens(output.usage, options.tenant, is_query=is_query)
        if output.miss_reason is not None:
            label = options.tenant if options.tenant in self._tenants else OTHER
            kind = output.miss_reason.kind.value
            self._instruments.misses.labels(reason=kind, tenant=label).inc()
        if is_query and output.miss_reason is not None:
            self.worth.on_query(
                output.usage, options.tenant, output.miss_reason, self._block_size
            )
        hit, timing = hit_class(output.usage).value, output.timing
        self._observe(self._instruments.first_token.labels(hit=hit), timing.ttft_s)
        self._observe(self._instruments.next_token.labels(hit=hit), timing.tpot_s)

    def on_used(self, path: UsedPath) -> None:
        """Pass on what a sequence used."""
        if self.what_if is not None:
            self.what_if.on_used(path)

    # -- the planes ----------------------------------------------------------------

    def on_response(self, plane: Plane, route: str | None, status: int) -> None:
        """Note a response."""
        known = OTHER if route is None else route
        # Whatever a status is, it must not make a series for each of its values.
        code = str(status) if _is_count(status) and 100 <= status <= 599 else OTHER
        self._instruments.responses.labels(
            plane=plane.value, route=known, status=code
        ).inc()

    def on_refused(self, tenant: str) -> None:
        """Note a request for tokens that the engine never took in."""
        del tenant
        self._instruments.requests.labels(outcome=Outcome.REFUSED.value).inc()

    def on_asked(self, request: ExchangeId, prompts: Sequence[AskedPrompt]) -> None:
        """Remember what was asked, to explain it later."""
        self.journal.note_asked(request, prompts)

    def on_output(self, request: ExchangeId, output: RequestOutput, *, prompt: int) -> None:
        """Remember the figures of a choice that ended."""
        self.timings.note(request, output)
        self.journal.note_output(request, output, prompt=prompt)
        self.recent.note(output)

    # -- a scrape ------------------------------------------------------------------

    def render(
        self, snapshot: EngineSnapshot | None, what_if: WhatIf | None = None
    ) -> bytes:
        """Return all metrics as text; without a snapshot, the counters."""
        mine = self._instruments
        mine.gauges.snapshot = snapshot
        mine.what_if.what_if = what_if
        if snapshot is not None:
            self._num_evicted_blocks = self._follow(
                mine.evicted_blocks,
                self._num_evicted_blocks,
                snapshot.cache.num_evicted_blocks,
            )
            self._num_preemptions = self._follow(
                mine.preemptions, self._num_preemptions, snapshot.num_preemptions
            )
            self._num_regretted_tokens = self._follow(
                mine.regretted_tokens,
                self._num_regretted_tokens,
                snapshot.num_regretted_tokens,
            )
            self._regretted_s = self._follow(
                mine.regretted_seconds, self._regretted_s, snapshot.regretted_s
            )
        return generate_latest(mine.registry)

    # -- inside --------------------------------------------------------------------

    def _count_tokens(self, usage: Usage, tenant: str, *, is_query: bool) -> None:
        mine = self._instruments
        label = tenant if tenant in self._tenants else OTHER
        mine.prompt_tokens.labels(tenant=label).inc(usage.prompt_tokens)
        mine.completion_tokens.labels(tenant=label).inc(usage.completion_tokens)
        if is_query:
            mine.query_tokens.labels(tenant=label).inc(usage.prompt_tokens)
            mine.hit_tokens.labels(tenant=label).inc(usage.cached_tokens)
            mine.hit_length.observe(usage.cached_tokens)
            tokens, pairs = self._unpriced
            pairs += num_pairs(0, usage.cached_tokens)
            self._unpriced = (tokens + usage.cached_tokens, pairs)
            self._price_hits()

    def _price_hits(self) -> None:
        tokens, pairs = self._unpriced
        fit = self._cost.fit
        if tokens and fit is not None:
            saved_s = fit.per_token * tokens + fit.per_pair * pairs
            self._add(self._instruments.seconds_saved, saved_s)
            self._unpriced = (0, 0.0)

    def _follow(self, counter: Counter, before: float, now: float) -> float:
        """Let a counter of ours grow as one of the engine's did; return its new value."""
        if not _is_amount(now) or now < before:
            self._note_error()
            return before
        counter.inc(now - before)
        return now

    def _observe(self, histogram: Histogram, seconds: float | None) -> None:
        if seconds is None:
            return
        if _is_amount(seconds):
            histogram.observe(seconds)
        else:
            self._note_error()

    def _add(self, counter: Counter, amount: float) -> None:
        if _is_amount(amount):
            counter.inc(amount)
        else:
            self._note_error()

    def _note_error(self) -> None:
        self._instruments.errors.inc()


def _is_plausible(usage: Usage) -> bool:
    counts = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    return all(map(_is_count, counts)) and usage.cached_tokens <= usage.prompt_tokens


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_amount(value)


def _is_amount(value: object) -> bool:
    # NaN and infinity pass every comparison that counters make, and spoil them for good.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < _LIMIT
    )
