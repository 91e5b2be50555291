"""The live what-if: fed by real requests, shown on the admin plane and in metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from prefold.blocks.table import TOKEN_DTYPE
from prefold.cache import NO_CACHE, READ_WRITE, Access, PrefixCache
from prefold.engine.observer import UsedPath
from prefold.identity.domain import Domain
from prefold.server.config import TenantConfig
from prefold.server.what_if import LiveWhatIf
from support.fingerprints import make_fingerprint
from support.planes_rig import Rig, RigSettings, open_rig

BLOCK_SIZE = 16
PLAIN = make_fingerprint()
ACME, BLUE = TenantConfig(name="acme"), TenantConfig(name="blue")
RULES = "the rules of this house are many and they are plain to all who live in it " * 3


def make_live(num_blocks: int = 64) -> LiveWhatIf:
    return LiveWhatIf(
        PrefixCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, clock=lambda: 0.0)
    )


def used(
    num_tokens: int = 64,
    *,
    domain: Domain = Domain("acme"),  # noqa: B008 -- a frozen value
    access: Access = READ_WRITE,
    num_cached: int = 0,
    weights: bytes = b"w",
) -> UsedPath:
    return UsedPath(
        tokens=np.arange(num_tokens, dtype=TOKEN_DTYPE),
        num_prompt_tokens=num_tokens,
        num_cached_tokens=num_cached,
        num_computed_tokens=num_tokens,
        domain=domain,
        access=access,
        fingerprint=make_fingerprint(weights=weights),
    )


def tell(live: LiveWhatIf, *paths: UsedPath) -> None:
    for path in paths:
        live.on_used(path)
        live.check_invariants()


def test_equal_prompts_of_two_domains_are_different_blocks() -> None:
    live = make_live()
    tell(live, used(), used(domain=Domain("blue")), used(domain=Domain("acme", b"salt")))
    assert live.read(PLAIN).num_sampled == 3 * 4
    tell(live, used(), used(domain=Domain("blue")))
    assert live.read(PLAIN).num_sampled == 3 * 4
    assert live.read(PLAIN).num_requests == 5


def test_another_model_begins_anew() -> None:
    live = make_live()
    tell(live, used(), used(num_cached=48))
    assert live.read(PLAIN).num_requests == 2
    other = make_fingerprint(weights=b"v")
    tell(live, used(weights=b"v"))
    found = live.read(other)
    assert (found.num_requests, found.num_sampled) == (1, 4)
    assert {point.hit_rate for point in found.points} == {0.0}
    # Whoever asks before its first request is over hears nothing of the one before.
    assert live.read(PLAIN).num_requests == 0


def test_who_reads_nothing_is_no_request_and_who_writes_nothing_leaves_nothing() -> None:
    live = make_live()
    tell(live, used(access=NO_CACHE))
    assert (live.read(PLAIN).num_requests, live.read(PLAIN).num_sampled) == (0, 0)
    tell(live, used(access=Access(read=True, write=False)))
    assert (live.read(PLAIN).num_requests, live.read(PLAIN).num_sampled) == (1, 0)
    tell(live, used(access=Access(read=False, write=True)))
    assert (live.read(PLAIN).num_requests, live.read(PLAIN).num_sampled) == (1, 4)


def test_two_servers_sample_different_blocks() -> None:
    one, other = make_live(), make_live()
    domain, fingerprint = Domain("acme"), make_fingerprint()
    assert one._seed(domain, fingerprint) == one._seed(domain, fingerprint)
    assert one._seed(domain, fingerprint) != other._seed(domain, fingerprint)


# -- on the planes ---------------------------------------------------------------------


def run(check: Callable[[Rig], Awaitable[None]], directory: Path) -> None:
    async def work() -> None:
        settings = RigSettings(directory=directory, tenants=(ACME, BLUE), num_blocks=64)
        async with open_rig(settings) as rig:
            await check(rig)

    asyncio.run(asyncio.wait_for(work(), 60))


async def ask(rig: Rig) -> dict[str, Any]:
    async with rig.admin() as admin:
        response = await admin.get("/cache/whatif")
    assert response.status_code == 200
    return dict(response.json())


async def complete(rig: Rig, tenant: str, prompt: str) -> int:
    async with rig.public(tenant) as public:
        response = await public.post(
            "/v1/completions", json={"model": "chain", "prompt": prompt, "max_tokens": 2}
        )
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_before_any_request_there_are_zeros_and_a_sentence(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        found = await ask(rig)
        assert found.pop("note") == (
            "no request has looked its prompt up yet; send some, and ask again when they "
            "have ended"
        )
        points = [
            {
                "factor": factor,
                "capacity_blocks": int(64 * factor),
                "hit_rate": 0.0,
                "saved_s": 0.0,
                "saved_share": 0.0,
            }
            for factor in (0.5, 1.0, 2.0, 4.0)
        ]
        assert found == {
            "object": "cache.whatif",
            "block_tokens": BLOCK_SIZE,
            "sample_rate": 1.0,
            "sampled": 0,
            "requests": 0,
            "points": points,
        }
        names = await rig.samples()
        assert not any(name.startswith("prefold_whatif") for name in names)

    run(check, tmp_path)


def test_live_requests_are_followed(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        hits = [await complete(rig, "acme", RULES) for _ in range(3)]
        hits.append(await complete(rig, "blue", RULES))
        # Nobody hits what only another one has.
        assert hits[0] == hits[3] == 0 < hits[1] == hits[2]
        async with rig.admin() as admin:
            num_tokens = (
                await admin.post("/cache/lookup", json={"prompt": RULES, "tenant": "acme"})
            ).json()["prompts"][0]["prompt_tokens"]
        found = await ask(rig)
        assert found["requests"] == 4
        points = found["points"]
        own = points[1]
        assert own["hit_rate"] == sum(hits) / (4 * num_tokens)
        samples = await rig.samples()
        for point in points:
            # All of it fits everywhere.
            assert point["hit_rate"] == own["hit_rate"]
            label = f'{{factor="{point["factor"]:g}"}}'
            assert samples[f"prefold_whatif_hit_ratio{label}"] == point["hit_rate"]
        assert samples["prefold_whatif_sampled_blocks"] == found["sampled"] > 0

    run(check, tmp_path)


def test_an_operators_own_requests_do_not_count(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            fields = {"prompt": RULES, "domain": "acme", "label": "rules"}
            response = await admin.post("/cache/approve", json=fields)
            assert response.status_code == 200, response.text
        assert (await ask(rig))["requests"] == 0

    run(check, tmp_path)
