"""Worth on the admin plane: sums, prices, fair shares and a verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from prefold.cache import CostFit
from prefold.cache.explain import MissKind, MissReason
from prefold.engine.request import Usage
from prefold.server.config import TenantConfig
from prefold.server.worth_meter import LengthCounts, WorthMeter
from support.planes_rig import Rig, RigSettings, open_rig
from support.sessions import BLOCK_SIZE

ACME = TenantConfig(name="acme", domain="acme")
BLUE = TenantConfig(name="blue", domain="blue/search")
FIT = CostFit(per_step=0.0, per_token=0.01, per_pair=0.0)


def miss(kind: MissKind = MissKind.NEVER_SEEN, num_lost_blocks: int = 0) -> MissReason:
    return MissReason(kind=kind, at_token=0, num_lost_blocks=num_lost_blocks)


def usage(prompt: int, cached: int) -> Usage:
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=1)


def test_quantiles_are_right_to_within_an_eighth() -> None:
    dice = Random(1)  # noqa: S311 -- a test's dice
    lengths = [int(dice.lognormvariate(5, 2)) for _ in range(2000)] + [0, 10**9]
    counts = LengthCounts()
    for length in lengths:
        counts.note(length)
    lengths.sort()
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        exact = lengths[max(int(share * len(lengths) + 0.999999) - 1, 0)]
        assert exact * 7 / 8 <= counts.quantile(share) <= exact
    assert LengthCounts().quantile(0.5) == 0


def test_the_meter_counts_by_tenant_and_what_eviction_cost() -> None:
    now = [50.0]
    meter = WorthMeter(["acme", "blue"], clock=lambda: now[0])
    meter.on_query(usage(100, 60), "acme", miss(), 16)
    meter.on_query(usage(100, 20), "acme", miss(MissKind.EVICTED, 3), 16)
    meter.on_query(usage(100, 90), "blue", miss(MissKind.EVICTED, 3), 16)
    meter.on_query(usage(10, 0), "stranger", miss(), 16)
    meter.on_step(0.5)
    now[0] = 60.0
    meter.check_invariants()
    assert (meter.since, meter.span_s, meter.busy_s) == (50.0, 10.0, 0.5)
    assert meter.total.num_requests == 4
    acme = meter.by_tenant["acme"]
    assert (acme.prompts.tokens, acme.hits.tokens, acme.evicted.tokens) == (200, 80, 48)
    # Never more than there is of the prompt.
    assert meter.by_tenant["blue"].evicted.tokens == 10
    assert set(meter.by_tenant) == {"acme", "blue"}
    assert acme.hits.ms(FIT) == pytest.approx(800)
    assert acme.evicted.ms(CostFit(per_step=0, per_token=0, per_pair=1e-3)) == (
        pytest.approx(sum(range(20, 68)))
    )


async def complete(rig: Rig, prompt: str, tenant: str) -> None:
    async with rig.public(tenant) as client:
        body = {"model": "chain", "prompt": prompt, "max_tokens": 2}
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text


async def worth_of(rig: Rig) -> dict[str, object]:
    async with rig.admin() as admin:
        response = await admin.get("/cache/worth")
    assert response.status_code == 200
    document: dict[str, object] = response.json()
    return document


def test_what_a_server_tells(tmp_path: Path) -> None:
    async def main() -> None:
        settings = RigSettings(directory=tmp_path, tenants=(ACME, BLUE))
        async with open_rig(settings) as rig:
            before = await worth_of(rig)
            assert before["object"] == "cache.worth"
            assert before["total"]["requests"] == 0  # type: ignore[index]  # a dict
            prompt = "abcdefgh" * BLOCK_SIZE
            for _ in range(3):
                await complete(rig, prompt, "acme")
            await complete(rig, prompt, "blue")
            await rig.planes.engine.call(lambda it: it.cache.cost.assume(FIT))
            document = await worth_of(rig)
            check(document)
            # Nothing of what was asked is told.
            assert "abcdefgh" not in str(document)

    asyncio.run(main())


def check(document: dict[str, object]) -> None:
    total, tenants = document["total"], document["tenants"]
    assert isinstance(total, dict)
    assert isinstance(tenants, list)
    acme, blue = tenants
    assert (acme["tenant"], blue["tenant"]) == ("acme", "blue")
    assert (acme["requests"], blue["requests"], total["requests"]) == (3, 1, 4)
    assert (total["hit_tokens"], blue["hit_tokens"]) == (acme["hit_tokens"], 0)
    assert acme["hit_rate"] > 0.6
    assert acme["repetition_rate"] == acme["hit_rate"]
    # Two of its three requests hit the same, told to within an eighth.
    each = acme["hit_tokens"] / 2
    assert each * 7 / 8 <= acme["hit_length"]["p90"] <= each
    assert acme["saved_ms"] == pytest.approx(10 * acme["hit_tokens"])
    assert (total["eviction_ms"], blue["saved_ms"]) == (0, 0)
    assert str(document["verdict"]).startswith("It ")
    best = document["best"]
    assert isinstance(best, list)
    assert best[0]["domain"] == "acme"
    assert best[0]["requests"] == 2
    assert 0 < len(best) <= 10
    assert document["is_complete"] is True


def test_before_prefill_was_measured_nothing_is_priced(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_rig(RigSettings(directory=tmp_path)) as rig:
            document = await worth_of(rig)
            assert document["verdict"] == (
                "Nobody knows yet: too little prefill was measured to price it."
            )
            assert document["total"]["saved_ms"] is None  # type: ignore[index]

    asyncio.run(main())
