"""Snapshot: an engine's figures at one moment between two steps, taken on its thread."""

from __future__ import annotations

from dataclasses import dataclass

from prefold.cache import CacheSnapshot
from prefold.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Figures that belong together. Counters are sums since the start.

    Attributes:
        num_running: Sequences that hold blocks.
        num_waiting: Sequences that hold none, preempted ones included.
        max_queued: Requests that may wait at the same time.
    """

    cache: CacheSnapshot
    num_approvals: int
    num_pinned_blocks: int
    num_blocks: int
    block_size: int
    num_running: int
    num_waiting: int
    max_queued: int
    num_steps: int
    num_computed_tokens: int
    num_hit_tokens: int
    num_sampled_tokens: int
    num_admissions: int
    num_preemptions: int
    num_failed_steps: int
    num_waits: int


def take_snapshot(engine: Engine) -> EngineSnapshot:
    """Return the figures of this moment; to be called between two steps."""
    # Pins that are over show no longer.
    engine.cache.approved.expire_due()
    cache, counters = engine.cache.snapshot(), engine.counters
    return EngineSnapshot(
        cache=cache,
        num_approvals=len(engine.cache.approved.approvals()),
        num_pinned_blocks=engine.cache.approved.num_pinned_blocks,
        num_blocks=engine.cache.num_blocks,
        block_size=engine.cache.block_size,
        # Between steps every running sequence holds one lease, and nobody else does.
        num_running=cache.num_leases,
        num_waiting=engine.num_open - cache.num_leases,
        max_queued=engine.config.scheduler.max_queued,
        num_steps=counters.num_steps,
        num_computed_tokens=counters.num_computed_tokens,
        num_hit_tokens=counters.num_hit_tokens,
        num_sampled_tokens=counters.num_sampled_tokens,
        num_admissions=counters.num_admissions,
        num_preemptions=counters.num_preemptions,
        num_failed_steps=counters.num_failed_steps,
        num_waits=counters.num_waits,
    )
