"""Advice document: advice as one JSON object."""

from __future__ import annotations

import math

from prefold.advisor.advice import Advice, CapacityPoint, Figures, PrefixWorth
from prefold.advisor.lint import Breaker, Lint
from prefold.advisor.traffic import Traffic
from prefold.advisor.worth import MemoryPrice

Document = dict[str, object]


def make_document(advice: Advice, traffic: Traffic, linted: Lint | None) -> Document:
    """Return all of it; figures of time are null where the log has none.

    Args:
        advice: On the traffic.
        traffic: What it is on.
        linted: What was found in its texts; None if it has none.
    """
    prices = advice.prices
    price = prices.thresholds.price
    return {
        "trace": advice.name,
        "format": traffic.trace_format.value,
        "block_size": traffic.trace.block_size,
        **_figures(advice.total, price),
        "verdict": advice.verdict.sentence,
        "pays": advice.verdict.pays,
        "reason": advice.verdict.reason.value,
        "verdict_capacity_bytes": advice.verdict_bytes,
        "capacity_bytes": advice.capacity_bytes,
        "peak_bytes": advice.peak_bytes,
        "tenants": [
            {"tenant": its.name, **_figures(its, price), "verdict": its.verdict.sentence}
            for its in advice.tenants
        ],
        "best": [_prefix(its) for its in advice.best],
        "worst": [_prefix(its) for its in advice.worst],
        "curve": [_point(its) for its in advice.curve],
        "breakers": [] if linted is None else [_breaker(its) for its in linted.breakers],
        "is_linted": linted is not None,
        "notes": list(traffic.notes),
        "problems": traffic.num_problems,
        "first_problems": [problem.describe() for problem in traffic.problems],
        "prices": {
            "ms_per_token": prices.prefill.per_token * 1e3,
            "ms_per_1k_depth": prices.prefill.per_pair * 1e6,
            "ms_per_output_token": prices.decode_ms,
            "bytes_per_token": prices.bytes_per_token,
            "machine_bytes": price.machine_bytes,
            "ms_per_gib_s": price.ms_per_gib_s,
        },
    }


def _figures(figures: Figures, price: MemoryPrice) -> Document:
    load, lengths, reuse = figures.load, figures.hit_lengths, figures.load.reuse
    return {
        "requests": load.num_requests,
        "prompt_tokens": load.num_prompt_tokens,
        "repetition_rate": load.repetition_rate,
        "hit_rate": load.hit_rate,
        "hit_length": {"mean": lengths.mean, **lengths.quantiles, "max": lengths.largest},
        "saved_ms": load.saved_ms,
        "saved_share": load.saved_share,
        "prefill_share": load.prefill_share,
        "evicted_ms": figures.evicted_ms,
        "span_s": load.span_s,
        "held_bytes": load.held_bytes,
        "held_byte_seconds": None if load.span_s is None else load.held_bytes * load.span_s,
        "saved_ms_per_s": None if reuse is None else reuse.saved_ms_per_s,
        "saved_ms_per_gib_s": None if reuse is None else _finite(reuse.saved_ms_per_gib_s),
        "requests_per_s": None if reuse is None else reuse.per_s,
        "break_even_per_s": None
        if reuse is None
        else _finite(reuse.break_even_per_s(price)),
    }


def _prefix(prefix: PrefixWorth) -> Document:
    reuse = prefix.reuse
    return {
        "first_request": prefix.first_request,
        "begin_token": prefix.begin,
        "end_token": prefix.end,
        "uses": prefix.num_uses,
        "saved_ms": prefix.saved_ms,
        "net_ms": prefix.net_ms,
        "held_byte_seconds": None if reuse is None else prefix.held_byte_s,
        "reuses_per_s": None if reuse is None else reuse.per_s,
        "saved_ms_per_s": None if reuse is None else reuse.saved_ms_per_s,
        "saved_ms_per_gib_s": None if reuse is None else _finite(reuse.saved_ms_per_gib_s),
        "break_even_per_s": _finite(prefix.break_even_per_s),
    }


def _point(point: CapacityPoint) -> Document:
    return {
        "capacity_bytes": point.num_bytes,
        "blocks": point.num_blocks,
        "hit_rate": point.hit_rate,
        "saved_ms": point.saved_ms,
        "held_bytes": point.held_bytes,
        "net_ms_per_s": point.net_ms_per_s,
    }


def _breaker(breaker: Breaker) -> Document:
    return {
        "kind": breaker.kind.value,
        "what": breaker.detail,
        "segment": breaker.segment,
        "at_token": breaker.at_token,
        "requests": breaker.num_requests,
        "share": breaker.share,
        "saved_tokens": breaker.saved_tokens,
        "saved_ms": breaker.saved_ms,
        "remedy": breaker.remedy,
        "example_lines": list(breaker.lines),
    }


def _finite(value: float | None) -> float | None:
    # JSON has no infinity.
    return value if value is not None and math.isfinite(value) else None
