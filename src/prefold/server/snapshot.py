"""Snapshot: an engine's figures at one moment between two steps, taken on its thread."""

from __future__ import annotations

from dataclasses import dataclass

from prefold.cache import CacheSnapshot, CostFit
from prefold.engine.engine import Engine
from prefold.eviction.quota import Quotas
from prefold.identity.domain import PUBLIC, Audience, AudienceKind

#: How deep a token is counted in so many tokens before it.
DEPTH_TOKENS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOfPool:
    """A domain's share of the pool, in blocks.

    Attributes:
        domain: Path of whoever has it, with all below that have none of their own.
        num_idle: Idle blocks, those included that nobody finds any more.
        num_reserved: Idle blocks that nobody else's need takes.
        max_idle: Idle blocks that it may have.
    """

    domain: str
    num_idle: int
    num_reserved: int
    max_idle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasOfPool:
    """Whose the idle blocks are.

    Attributes:
        num_others_idle: Of all domains without a share, together.
        num_approved_idle: Of approved prefixes, which are all their readers'.
        max_pinned: Blocks that approvals may pin.
    """

    shares: tuple[ShareOfPool, ...]
    num_others_idle: int
    num_approved_idle: int
    max_pinned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSnapshot:
    """Figures that belong together. Counters are sums since the start.

    Attributes:
        policy: Name of the eviction policy.
        cost: What prefill takes; None before enough of it was measured.
        num_running: Sequences that hold blocks.
        num_waiting: Sequences that hold none, preempted ones included.
        max_queued: Requests that may wait at the same time.
    """

    cache: CacheSnapshot
    policy: str
    quotas: QuotasOfPool
    cost: CostFit | None
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
    num_regretted_tokens: int
    regretted_s: float


def take_snapshot(engine: Engine) -> EngineSnapshot:
    """Return the figures of this moment; to be called between two steps."""
    # Pins that are over show no longer.
    engine.cache.approved.expire_due()
    cache, counters = engine.cache.snapshot(), engine.counters
    return EngineSnapshot(
        cache=cache,
        policy=engine.cache.room.queue.name,
        quotas=_take_quotas(engine.cache.room.quotas),
        cost=engine.cache.cost.fit,
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
        num_regretted_tokens=counters.num_regretted_tokens,
        regretted_s=counters.regretted_s,
    )


def _take_quotas(quotas: Quotas) -> QuotasOfPool:
    # No share is for what everybody reads, so it is counted with all others.
    others = quotas.of_domain(PUBLIC)
    approved = quotas.of(Audience(kind=AudienceKind.APPROVED, domain=PUBLIC))
    return QuotasOfPool(
        shares=tuple(
            ShareOfPool(
                domain=each.name,
                num_idle=each.num_idle,
                num_reserved=each.num_reserved,
                max_idle=each.max_idle,
            )
            for each in quotas.accounts()
            if each is not others and each is not approved
        ),
        num_others_idle=others.num_idle,
        num_approved_idle=approved.num_idle,
        max_pinned=quotas.max_pinned,
    )
