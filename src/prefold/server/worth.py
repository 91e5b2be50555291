"""Worth: what caching saves on a running server, and whether that pays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefold.advisor.verdict import Load, Thresholds, judge
from prefold.advisor.worth import GIB, MemoryPrice, Reuse, best_and_worst, ratio
from prefold.cache import CostFit
from prefold.cache.holdings import HeldPrefix, Holdings, take_holdings
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.engine import Engine
from prefold.server.worth_meter import TenantSums, WorthMeter
from prefold.server.worth_protocol import (
    LengthFigures,
    PrefixWorthFigures,
    TenantWorth,
    WorthFigures,
    WorthReply,
)

#: Prefixes that are looked at, from the beginnings of prompts outwards.
MAX_PREFIXES = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prices:
    """What is known of costs.

    Attributes:
        fit: Of prefill; None before it was measured.
        block_bytes: None for a store that nobody knows.
    """

    fit: CostFit | None
    block_bytes: int | None
    price: MemoryPrice


async def read_worth(
    engine: AsyncEngine, meter: WorthMeter, tenants: Mapping[str, str]
) -> WorthReply:
    """Return what caching is worth since the server's start.

    Args:
        engine: Whose cache.
        meter: What its requests came to.
        tenants: Names of tenants by the paths of their domains.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """
    return await engine.call(lambda it: _take(it, meter, tenants))


def machine_bytes() -> int:
    """Return the memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _take(engine: Engine, meter: WorthMeter, tenants: Mapping[str, str]) -> WorthReply:
    now = engine.parts.clock()
    holdings = take_holdings(engine.cache.room, now, max_prefixes=MAX_PREFIXES)
    origin = engine.parts.origin
    prices = _Prices(
        fit=engine.cache.cost.fit,
        block_bytes=None if origin is None else origin.store.layout.block_bytes,
        price=MemoryPrice(machine_bytes=machine_bytes()),
    )
    span_s = meter.span_s
    by_tenant = {
        tenants[path]: block_s
        for path, block_s in holdings.by_account.items()
        if path is not None and path in tenants
    }
    best, worst = _ranked(holdings, prices)
    return WorthReply(
        since=int(meter.since),
        total=_figures(meter.total, holdings.block_s, span_s, prices),
        tenants=[
            TenantWorth(
                tenant=name,
                **_figures(sums, by_tenant.get(name, 0.0), span_s, prices).model_dump(),
            )
            for name, sums in meter.by_tenant.items()
        ],
        best=best,
        worst=worst,
        is_complete=holdings.is_complete,
        machine_bytes=int(prices.price.machine_bytes),
        verdict=_verdict(meter, holdings, prices),
    )


def _figures(
    sums: TenantSums, block_s: float, span_s: float, prices: _Prices
) -> WorthFigures:
    fit, size = prices.fit, prices.block_bytes
    saved_ms = None if fit is None else sums.hits.ms(fit)
    held = None if size is None else block_s * size
    reuse = None
    if saved_ms is not None and held is not None and span_s > 0:
        reuse = Reuse(
            saved_ms=ratio(saved_ms, sums.num_requests),
            held_bytes=held / span_s,
            per_s=sums.num_requests / span_s,
        )
    quantiles = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    lengths = {name: sums.hit_lengths.quantile(at) for name, at in quantiles.items()}
    seen = sums.hits.tokens + sums.evicted.tokens
    return WorthFigures(
        requests=sums.num_requests,
        prompt_tokens=sums.prompts.tokens,
        hit_tokens=sums.hits.tokens,
        repetition_rate=ratio(seen, sums.prompts.tokens),
        hit_rate=ratio(sums.hits.tokens, sums.prompts.tokens),
        hit_length=LengthFigures(**lengths),
        saved_ms=saved_ms,
        held_byte_seconds=held,
        eviction_ms=None if fit is None else sums.evicted.ms(fit),
        saved_ms_per_s=None if reuse is None else reuse.saved_ms_per_s,
        saved_ms_per_gib_s=None if reuse is None else _finite(reuse.saved_ms_per_gib_s),
        break_even_per_s=None
        if reuse is None
        else _finite(reuse.break_even_per_s(prices.price)),
    )


def _verdict(meter: WorthMeter, holdings: Holdings, prices: _Prices) -> str:
    if prices.fit is None:
        return "Nobody knows yet: too little prefill was measured to price it."
    sums, span_s = meter.total, meter.span_s
    median = sums.prompt_lengths.quantile(0.5)
    prefill_ms, saved_ms = sums.prompts.ms(prices.fit), sums.hits.ms(prices.fit)
    size = prices.block_bytes
    load = Load(
        num_requests=sums.num_requests,
        num_prompt_tokens=sums.prompts.tokens,
        num_repeated_tokens=sums.hits.tokens + sums.evicted.tokens,
        num_hit_tokens=sums.hits.tokens,
        median_prompt_tokens=float(median),
        median_prefill_ms=1000 * prices.fit.saved_s(0, median),
        prefill_ms=prefill_ms,
        # Without a cache, steps would have taken what hits spared besides.
        decode_ms=max(1000 * meter.busy_s + saved_ms - prefill_ms, 0.0),
        saved_ms=saved_ms,
        span_s=None if size is None else span_s or None,
        held_bytes=0.0 if size is None else ratio(holdings.block_s * size, span_s),
    )
    return judge(load, Thresholds(price=prices.price)).sentence


def _ranked(
    holdings: Holdings, prices: _Prices
) -> tuple[list[PrefixWorthFigures], list[PrefixWorthFigures]]:
    """Return the prefixes that are worth most, and those worth least."""

    def net(prefix: HeldPrefix) -> float:
        if prices.fit is None or prices.block_bytes is None:
            # What is used most for its size is the best guess.
            return prefix.num_hits - prefix.block_s / 3600
        saved_ms = 1000 * prices.fit.saved_s(prefix.start, prefix.end) * prefix.num_hits
        gib_s = prefix.block_s * prices.block_bytes / GIB
        return saved_ms - prices.price.ms_per_gib_s * gib_s

    order = sorted(holdings.prefixes, key=net, reverse=True)
    best, worst = best_and_worst(order)
    return _described(best, prices), _described(worst, prices)


def _described(prefixes: Sequence[HeldPrefix], prices: _Prices) -> list[PrefixWorthFigures]:
    return [_prefix(prefix, prices) for prefix in prefixes]


def _prefix(prefix: HeldPrefix, prices: _Prices) -> PrefixWorthFigures:
    size, reuse = prices.block_bytes, None
    per_s = ratio(prefix.num_hits, prefix.age_s) if prefix.age_s else 0.0
    once_ms = None
    if prices.fit is not None:
        once_ms = 1000 * prices.fit.saved_s(prefix.start, prefix.end)
    if once_ms is not None and size is not None:
        reuse = Reuse(saved_ms=once_ms, held_bytes=prefix.num_blocks * size, per_s=per_s)
    return PrefixWorthFigures(
        domain=prefix.domain,
        begin_token=prefix.start,
        end_token=prefix.end,
        requests=prefix.num_hits,
        saved_ms=None if once_ms is None else once_ms * prefix.num_hits,
        held_byte_seconds=None if size is None else prefix.block_s * size,
        reuses_per_s=per_s,
        break_even_per_s=None
        if reuse is None
        else _finite(reuse.break_even_per_s(prices.price)),
        pays=None if reuse is None else reuse.pays(prices.price),
    )


def _finite(value: float) -> float | None:
    # JSON has no infinity.
    return value if value < float("inf") else None
