"""What operators are told is what the engine says, each figure under its own name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prefold.blocks.pool import BlockCounts
from prefold.blocks.table import TOKEN_DTYPE
from prefold.cache import CacheSnapshot, CostFit, ListingBounds
from prefold.cache.listing import CacheListing, ListedRun
from prefold.cache.selector import Receipt
from prefold.engine.config import SchedulerConfig
from prefold.engine.request import SamplingParams
from prefold.identity.domain import AudienceKind
from prefold.server import operations, sharing
from prefold.server.snapshot import (
    EngineSnapshot,
    QuotasOfPool,
    ShareOfPool,
    take_snapshot,
)
from support.fake_engine import FakeEngine
from support.planes_rig import RigSettings, assert_error, open_rig

#: No two figures are equal, so none can stand for another.
SNAPSHOT = EngineSnapshot(
    cache=CacheSnapshot(
        blocks=BlockCounts(free=5, private=4, shared=3, idle=2),
        num_trees=21,
        num_nodes=22,
        num_leases=23,
        num_evictions=24,
        num_evicted_blocks=25,
    ),
    policy="lfu",
    quotas=QuotasOfPool(
        shares=(
            ShareOfPool(domain="acme/a", num_idle=51, num_reserved=52, max_idle=53),
            ShareOfPool(domain="blue", num_idle=54, num_reserved=55, max_idle=56),
        ),
        num_others_idle=57,
        num_approved_idle=58,
        max_pinned=59,
    ),
    cost=CostFit(per_step=61.0, per_token=62.0, per_pair=0.063),
    num_approvals=26,
    num_pinned_blocks=27,
    num_blocks=14,
    block_size=16,
    num_running=31,
    num_waiting=32,
    max_queued=33,
    num_steps=41,
    num_computed_tokens=42,
    num_hit_tokens=43,
    num_sampled_tokens=44,
    num_admissions=45,
    num_preemptions=46,
    num_failed_steps=47,
    num_waits=48,
    num_regretted_tokens=71,
    regretted_s=72.0,
)


@dataclass
class ToldEngine:
    """Answers every call with one value."""

    value: object
    is_accepting: bool = True

    async def call(self, _: object) -> Any:
        return self.value


@dataclass
class NamedModel:
    name: str = "m"
    system_fingerprint: str = "fp"


def told(value: object) -> Any:
    return ToldEngine(value)


def test_stats_are_those_of_the_snapshot() -> None:
    model: Any = NamedModel()
    tenants = {"acme/a": "acme"}
    reply = asyncio.run(operations.read_stats(told(SNAPSHOT), model, tenants))
    assert reply.model_dump() == {
        "model": "m",
        "fingerprint": "fp",
        "blocks": {"free": 5, "private": 4, "shared": 3, "idle": 2, "total": 14},
        "block_size": 16,
        "capacity_tokens": 14 * 16,
        "num_trees": 21,
        "num_runs": 22,
        "num_leases": 23,
        "num_evictions": 24,
        "num_evicted_blocks": 25,
        "num_approvals": 26,
        "num_pinned_blocks": 27,
        "num_steps": 41,
        "num_computed_tokens": 42,
        "num_hit_tokens": 43,
        "num_sampled_tokens": 44,
        "num_admissions": 45,
        "num_preemptions": 46,
        "num_failed_steps": 47,
        "policy": "lfu",
        "shares": [
            {
                "tenant": "acme",
                "domain": "acme/a",
                "idle_blocks": 51,
                "reserved_blocks": 52,
                "max_idle_blocks": 53,
            },
            {
                "tenant": None,
                "domain": "blue",
                "idle_blocks": 54,
                "reserved_blocks": 55,
                "max_idle_blocks": 56,
            },
        ],
        "num_others_idle_blocks": 57,
        "num_approved_idle_blocks": 58,
        "max_pinned_blocks": 59,
        "prefill_cost": {"token_s": 62.0, "depth_s": 63.0},
        "num_regretted_tokens": 71,
        "regretted_prefill_s": 72.0,
    }
    early = replace(SNAPSHOT, cost=None)
    reply = asyncio.run(operations.read_stats(told(early), model, tenants))
    assert reply.prefill_cost is None


def test_the_queue_is_that_of_the_snapshot() -> None:
    for is_accepting in (True, False):
        engine: Any = ToldEngine(SNAPSHOT, is_accepting=is_accepting)
        assert asyncio.run(operations.read_queue(engine)).model_dump() == {
            "waiting": 32,
            "running": 31,
            "max_queued": 33,
            "is_accepting": is_accepting,
        }


def test_a_receipt_is_handed_on() -> None:
    for is_bound in (True, False):
        receipt = Receipt(
            num_blocks=7,
            num_leased_blocks=3,
            is_upper_bound=is_bound,
            num_approvals=5,
            num_invalidations=2,
        )
        assert asyncio.run(sharing.reset(told(receipt))).model_dump() == {
            "dropped_blocks": 7,
            "leased_blocks": 3,
            "is_upper_bound": is_bound,
            "ended_approvals": 5,
            "num_invalidations": 2,
        }


def test_a_run_is_that_of_the_listing() -> None:
    run = ListedRun(
        parent=1,
        depth=2,
        tree=3,
        start=4,
        num_tokens=5,
        num_blocks=6,
        is_partial=True,
        kind=AudienceKind.OWN,
        domain="acme",
        is_salted=False,
        num_leases=7,
        num_hits=8,
        idle_s=9.5,
        num_children=10,
        token_ids=np.array([1], dtype=TOKEN_DTYPE),
        labels=("rules",),
    )
    listing = CacheListing(runs=(run,), num_nodes=11, is_complete=False)
    bounds = ListingBounds(max_nodes=1, max_depth=1)
    reply = asyncio.run(operations.read_tree(told(listing), bounds, None))
    assert (reply.num_runs, reply.is_complete) == (11, False)
    assert reply.runs[0].model_dump() == {
        "parent": 1,
        "depth": 2,
        "fingerprint": 3,
        "start": 4,
        "tokens": 5,
        "blocks": 6,
        "is_partial": True,
        "audience": "own",
        "approvals": ["rules"],
        "domain": "acme",
        "is_salted": False,
        "leases": 7,
        "hits": 8,
        "idle_s": 9.5,
        "children": 10,
        "text": None,
    }


def test_a_snapshot_tells_running_from_waiting_requests() -> None:
    engine = FakeEngine(scheduler=SchedulerConfig(max_running=1, max_queued=9))
    for first in range(3):
        engine.submit([first] * 9, SamplingParams(max_tokens=5))
    engine.step()
    found = take_snapshot(engine)
    assert (found.num_running, found.num_waiting, found.max_queued) == (1, 2, 9)
    assert (found.num_blocks, found.block_size) == (64, 4)
    assert (found.num_steps, found.num_admissions) == (1, 1)
    assert found.num_computed_tokens == 9
    assert found.num_sampled_tokens == 1


def test_a_prompt_that_was_not_computed_is_no_success(tmp_path: Path) -> None:
    async def check() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig:
            rig.runner.fails_at = 1
            async with rig.admin() as admin:
                response = await admin.post("/cache/warm", json={"prompt": [1] * 40})
                assert "was not computed" in assert_error(response, 503)
                response = await admin.post("/cache/warm", json={"prompt": [1] * 40})
                assert response.json()["prompts"][0]["hit_tokens"] > 30

    asyncio.run(check())
