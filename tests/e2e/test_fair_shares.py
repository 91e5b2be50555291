"""How long and how dearly KV is kept, and whose it is, as clients of both planes see it.

The clock of the cache stands still until a test sets it forward. What is there is asked for
on the admin plane, which changes nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from prefold.engine.assembly import assemble
from prefold.server.config import CacheConfig, TenantConfig
from prefold.server.config_file import load_config
from prefold.server.keys import KeyFile
from prefold.server.serve import make_planes, model_settings, open_doors, served_model
from support.planes_rig import MODEL, Rig, assert_error, client_of, parse_metrics, total
from support.sessions import BLOCK_SIZE
from support.settable_clock import SettableClock
from support.sharing import ROUTES, ask, body_of, check_idle, done, run
from support.tiny_models import make_llama, save_model

pytestmark = pytest.mark.e2e

ACME, BLUE = TenantConfig(name="acme"), TenantConfig(name="blue")

#: Blocks of one prompt; eight fit.
SIZE = 4
POOL = 8 * SIZE
DAY_S = 86_400.0


def prompt(number: int) -> list[int]:
    """Return a prompt of whole blocks that no other one begins like."""
    return [number, *range(1, SIZE * BLOCK_SIZE)]


async def leave(
    rig: Rig, tenant: str, number: int, route: str = ROUTES[0], **fields: Any
) -> None:
    response = await ask(rig, tenant, prompt(number), route, **fields)
    assert response.status_code == 200, response.text


async def num_found(
    rig: Rig, tenant: str, number: int, route: str = ROUTES[0], **where: Any
) -> int:
    """Return how many tokens a request would hit that goes on after a prompt."""
    body = body_of(route, prompt(number))
    asked = {key: body[key] for key in ("prompt", "messages") if key in body}
    if "prompt" in asked:
        asked["prompt"] = [*asked["prompt"], 1]
    answer = await done(rig, "/cache/lookup", tenant=tenant, **asked, **where)
    return int(answer["prompts"][0]["hit_tokens"])


async def is_whole(rig: Rig, tenant: str, number: int) -> bool:
    return await num_found(rig, tenant, number) == SIZE * BLOCK_SIZE


async def flood(rig: Rig, tenant: str, num_prompts: int, first: int = 100) -> None:
    for number in range(first, first + num_prompts):
        await leave(rig, tenant, number)


async def stats_of(rig: Rig) -> Any:
    async with rig.admin() as admin:
        return (await admin.get("/cache/stats")).json()


# -- time to live --------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("tenant", "default", "fields", "ends_after_s"),
    [
        ({}, None, {}, None),
        ({}, None, {"prompt_cache_retention": "in_memory"}, None),
        ({}, None, {"cache": {"ttl_s": 60}}, 60),
        ({}, None, {"prompt_cache_retention": "24h"}, DAY_S),
        ({}, None, {"prompt_cache_retention": "24h", "cache": {"ttl_s": 86_400}}, DAY_S),
        ({}, None, {"prompt_cache_retention": "in_memory", "cache": {"ttl_s": 5}}, 5),
        ({}, 30.0, {}, 30),
        ({}, 30.0, {"cache": {"ttl_s": 60}}, 60),
        ({"ttl_s": 40.0}, 30.0, {}, 40),
        ({"ttl_s": 40.0}, 30.0, {"prompt_cache_retention": "24h"}, 40),
        ({"ttl_s": 40.0}, None, {"cache": {"ttl_s": 20}}, 20),
    ],
    ids=str,
)
def test_an_entry_is_found_until_its_time_is_over(
    tmp_path: Path,
    route: str,
    tenant: dict[str, Any],
    default: float | None,
    fields: dict[str, Any],
    ends_after_s: float | None,
) -> None:
    clock = SettableClock(1000.0)

    async def check(rig: Rig) -> None:
        await leave(rig, "acme", 1, route, **fields)
        clock.advance((ends_after_s or 1e9) - 0.5)
        assert await num_found(rig, "acme", 1, route) > 0
        clock.advance(1.0)
        assert (await num_found(rig, "acme", 1, route) > 0) is (ends_after_s is None)
        check_idle(rig.engine)

    run(
        check,
        tmp_path,
        TenantConfig(name="acme", **tenant),
        cache_config=CacheConfig(ttl_s=default),
        clock=clock,
    )


def test_the_time_begins_anew_with_each_use(tmp_path: Path) -> None:
    clock = SettableClock()

    async def check(rig: Rig) -> None:
        for _ in range(3):
            await leave(rig, "acme", 1, cache={"ttl_s": 60})
            clock.advance(50.0)
            assert await is_whole(rig, "acme", 1)
        clock.advance(10.5)
        assert await num_found(rig, "acme", 1) == 0

    run(check, tmp_path, ACME, clock=clock)


def test_what_is_warmed_is_kept_as_long_as_was_said(tmp_path: Path) -> None:
    clock = SettableClock()

    async def check(rig: Rig) -> None:
        more: dict[str, Any]
        for number, more in ((1, {"ttl_s": 60}), (2, {"ttl_s": 600}), (3, {})):
            await done(rig, "/cache/warm", tenant="acme", prompt=prompt(number), **more)
        clock.advance(61.0)
        assert [await is_whole(rig, "acme", n) for n in (1, 2, 3)] == [False, True, True]
        # No longer than the tenant's entries live.
        clock.advance(40.0)
        assert [await is_whole(rig, "acme", n) for n in (2, 3)] == [False, False]
        async with rig.admin() as admin:
            for field, value in (("ttl_s", 0), ("priority", 101), ("ends_conversation", 1)):
                body = {"tenant": "acme", "prompt": "x", field: value}
                response = await admin.post("/cache/warm", json=body)
                assert_error(response, 400)
                assert response.json()["error"]["param"] == field
            # A lookup leaves nothing behind that could be kept.
            body = {"tenant": "acme", "prompt": "x", "ttl_s": 5}
            assert_error(await admin.post("/cache/lookup", json=body), 400)

    run(check, tmp_path, TenantConfig(name="acme", ttl_s=100.0), BLUE, clock=clock)


def test_two_ways_to_say_how_long_must_agree(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for route in ROUTES:
            response = await ask(
                rig,
                "acme",
                [1, 2],
                route,
                prompt_cache_retention="24h",
                cache={"ttl_s": 60},
            )
            message = assert_error(response, 400)
            assert "cache.ttl_s" in message
            assert response.json()["error"]["param"] == "prompt_cache_retention"
        assert rig.runner._num_calls == 0

    run(check, tmp_path, ACME)


# -- what goes first -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "survivors"),
    [
        ({}, {}, [False, True]),
        ({"priority": 1}, {}, [True, False]),
        ({"priority": 100}, {"priority": 99}, [True, False]),
        ({}, {"priority": -1}, [True, False]),
        ({"priority": -100}, {"priority": -100}, [False, True]),
        ({}, {"ends_conversation": True}, [True, False]),
        ({"priority": -100}, {"priority": 100, "ends_conversation": True}, [True, False]),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_what_was_said_of_an_entry_goes_before_the_policys_order(
    tmp_path: Path,
    old: dict[str, Any],
    new: dict[str, Any],
    survivors: list[bool],
    policy: str,
) -> None:
    clock = SettableClock()

    async def check(rig: Rig) -> None:
        for number, cache in ((1, old), (2, new)):
            await leave(rig, "acme", number, cache=cache)
            clock.advance(1.0)
        # All that is left of the pool, and a little more, dearer than both.
        for number in range(100, 107):
            await leave(rig, "acme", number, cache={"priority": 100})
            clock.advance(1.0)
        assert [await is_whole(rig, "acme", number) for number in (1, 2)] == survivors
        check_idle(rig.engine)

    run(
        check,
        tmp_path,
        ACME,
        num_blocks=POOL,
        cache_config=CacheConfig(policy=policy),
        clock=clock,
    )


def test_a_warmed_prompt_has_the_priority_that_was_said(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for number, priority in ((1, 50), (2, -50)):
            body = {"prompt": prompt(number), "priority": priority}
            await done(rig, "/cache/warm", tenant="acme", **body)
        await flood(rig, "acme", 7)
        assert [await is_whole(rig, "acme", number) for number in (1, 2)] == [True, False]

    run(check, tmp_path, ACME, num_blocks=POOL)


@pytest.mark.parametrize("across", [False, True])
def test_a_priority_ranks_inside_its_own_tenants_share(
    tmp_path: Path, *, across: bool
) -> None:
    clock = SettableClock()

    async def check(rig: Rig) -> None:
        await leave(rig, "acme", 1, cache={"priority": 100})
        clock.advance(1.0)
        for number in range(2, 10):
            await leave(rig, "blue", number, cache={"priority": -100})
            clock.advance(1.0)
        # The oldest has gone, however dear its tenant said that it is.
        assert await is_whole(rig, "acme", 1) is across
        check_idle(rig.engine)

    run(
        check,
        tmp_path,
        ACME,
        BLUE,
        num_blocks=POOL,
        cache_config=CacheConfig(policy="lru", ranks_across=across),
        clock=clock,
    )


# -- fair shares ---------------------------------------------------------------------------


@pytest.mark.parametrize("reserved", [0.5, 0.0])
def test_a_reservation_outlasts_a_flood_of_ten_pools(
    tmp_path: Path, reserved: float
) -> None:
    async def check(rig: Rig) -> None:
        for number in (1, 2, 3, 4):
            await leave(rig, "acme", number)
        await flood(rig, "blue", 10 * POOL // SIZE)
        kept = [await is_whole(rig, "acme", number) for number in (1, 2, 3, 4)]
        assert kept == [bool(reserved)] * 4
        # What is left over is the other's, who still hits what it used last.
        last = 100 + 10 * POOL // SIZE - 1
        assert await is_whole(rig, "blue", last)
        stats = await stats_of(rig)
        assert stats["num_evicted_blocks"] > 8 * POOL
        acme, blue = stats["shares"]
        assert (acme["tenant"], blue["tenant"]) == ("acme", "blue")
        assert acme["reserved_blocks"] == POOL * reserved
        assert acme["idle_blocks"] == (POOL // 2 if reserved else 0)
        check_idle(rig.engine)

    acme = TenantConfig(name="acme", cache_reserved=reserved)
    run(check, tmp_path, acme, BLUE, num_blocks=POOL)


def test_what_is_reserved_and_not_filled_is_used_by_others_until_then(
    tmp_path: Path,
) -> None:
    async def check(rig: Rig) -> None:
        await flood(rig, "blue", 2 * POOL // SIZE)
        stats = await stats_of(rig)
        assert stats["shares"][1]["idle_blocks"] > POOL - SIZE
        for number in (1, 2, 3, 4):
            await leave(rig, "acme", number)
        await flood(rig, "blue", POOL // SIZE, first=200)
        assert all([await is_whole(rig, "acme", number) for number in (1, 2, 3, 4)])
        check_idle(rig.engine)

    acme = TenantConfig(name="acme", cache_reserved=0.5)
    run(check, tmp_path, acme, BLUE, num_blocks=POOL)


def test_above_its_maximum_a_tenants_own_go_at_once(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await leave(rig, "blue", 50)
        await flood(rig, "acme", 6)
        acme, _ = (await stats_of(rig))["shares"]
        assert (acme["idle_blocks"], acme["max_idle_blocks"]) == (POOL // 4, POOL // 4)
        assert await is_whole(rig, "acme", 105)
        # Nobody needed a block: the pool is not even full.
        assert await is_whole(rig, "blue", 50)
        assert rig.engine.cache.counts.free > 0
        check_idle(rig.engine)

    acme = TenantConfig(name="acme", cache_max=0.25)
    run(check, tmp_path, acme, BLUE, num_blocks=POOL)


def test_what_others_have_reserved_is_no_room_for_a_request(tmp_path: Path) -> None:
    half = POOL * BLOCK_SIZE // 2

    async def check(rig: Rig) -> None:
        fits, too_long = list(range(half - 2)), list(range(half - 1))
        for tenant, asked, is_served in (
            ("blue", fits, True),
            ("blue", too_long, False),
            # Its own reservation is room for it.
            ("acme", too_long, True),
        ):
            response = await ask(rig, tenant, asked)
            assert (response.status_code == 200) is is_served, response.text
        message = assert_error(await ask(rig, "blue", too_long), 400)
        for words in (
            f"{half - 1} tokens and max_tokens is 1",
            f"{half} tokens",
            f"{POOL // 2} blocks of {BLOCK_SIZE} beside {POOL // 2} that are pinned or",
        ):
            assert words in message
        assert "acme" not in message
        num_calls = rig.runner._num_calls
        await ask(rig, "blue", too_long)
        assert rig.runner._num_calls == num_calls
        check_idle(rig.engine)

    acme = TenantConfig(name="acme", cache_reserved=0.5)
    run(check, tmp_path, acme, BLUE, num_blocks=POOL)


def test_a_chat_of_no_stated_length_asks_for_what_its_tenant_can_have(
    tmp_path: Path,
) -> None:
    async def check(rig: Rig) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        for tenant, share in (("blue", POOL // 2), ("acme", POOL)):
            async with rig.public(tenant) as client:
                response = await client.post(ROUTES[1], json=body)
            assert response.status_code == 200, response.text
            used = response.json()["usage"]["total_tokens"]
            assert used == share * BLOCK_SIZE - 1

    acme = TenantConfig(name="acme", cache_reserved=0.5)
    run(check, tmp_path, acme, BLUE, num_blocks=POOL)


# -- what is told --------------------------------------------------------------------------


def test_figures_are_those_of_the_accounts(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for number in (1, 2):
            await leave(rig, "acme", number)
        await leave(rig, "blue", 3, cache={"domain": "blue/chat"}, cache_salt="s")
        await flood(rig, "blue", 7)
        await done(rig, "/cache/approve", prompt=prompt(4), domain="public", label="a")
        # Computed once more, since it has gone.
        await leave(rig, "acme", 1)
        stats, seen = await stats_of(rig), await rig.samples()
        engine = rig.engine
        idle = {share["tenant"]: share["idle_blocks"] for share in stats["shares"]}
        for tenant, count in {**idle, "other": stats["num_others_idle_blocks"]}.items():
            assert seen[f'prefold_tenant_idle_blocks{{tenant="{tenant}"}}'] == count
        approved = stats["num_approved_idle_blocks"]
        assert seen["prefold_approved_idle_blocks"] == approved == SIZE
        assert stats["num_others_idle_blocks"] == 0
        assert (
            total(seen, "prefold_tenant_idle_blocks") + approved == engine.cache.counts.idle
        )
        assert seen['prefold_tenant_reserved_blocks{tenant="acme"}'] == POOL // 8
        assert seen['prefold_tenant_max_idle_blocks{tenant="blue"}'] == POOL
        assert stats["policy"] == "lfu"
        assert stats["max_pinned_blocks"] == int(0.5 * POOL)
        counters = engine.counters
        assert stats["num_regretted_tokens"] == counters.num_regretted_tokens > 0
        assert seen["prefold_regretted_tokens_total"] == counters.num_regretted_tokens
        seconds = seen["prefold_regretted_prefill_seconds_total"]
        assert (
            seconds == pytest.approx(counters.regretted_s) == stats["regretted_prefill_s"]
        )
        fit = engine.cache.cost.fit
        assert fit is not None
        assert stats["prefill_cost"]["token_s"] == fit.per_token
        assert seen["prefold_prefill_token_seconds"] == fit.per_token
        assert seen["prefold_prefill_depth_seconds"] == 1000 * fit.per_pair
        assert seen["prefold_metric_errors_total"] == 0
        check_idle(engine)

    run(
        check,
        tmp_path,
        TenantConfig(name="acme", cache_reserved=0.125),
        BLUE,
        num_blocks=POOL,
        cache_config=CacheConfig(policy="lfu", max_pinned=0.5),
    )


def test_a_configuration_file_reaches_the_cache_of_a_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)
    save_model(make_llama(), tmp_path / "model")
    file = tmp_path / "prefold.toml"
    file.write_text(
        f"""
        [model]
        source = "{tmp_path / "model"}"
        served_name = "tiny"
        [cache]
        blocks = 40
        policy = "lfu"
        ttl_s = 1e7
        [server]
        key_file = "keys.json"
        admin_token_file = "admin_token"
        [[tenants]]
        name = "acme"
        cache_reserved = 0.25
        cache_max = 0.75
        [[tenants]]
        name = "blue"
        """
    )

    async def main() -> None:
        config = load_config(file, {})
        key = f"Bearer {KeyFile(tmp_path / 'keys.json').create('acme').text}"
        doors = open_doors(config)
        assembly = assemble(config.model.source, model_settings(config))
        planes = make_planes(config, doors, assembly.parts, served_model(assembly, config))
        await planes.engine.start()
        try:
            async with client_of(planes.public, key) as client:
                text = "the quick brown fox " * 4
                body = {"model": "tiny", "prompt": text, "max_tokens": 2}
                answers = [await client.post(ROUTES[0], json=body) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 200]
            cold, warm = (int(it.headers["x-prefold-cached-tokens"]) for it in answers)
            assert 0 == cold < warm
            async with client_of(planes.admin, doors.token.authorization) as admin:
                stats = (await admin.get("/cache/stats")).json()
                seen = parse_metrics((await admin.get("/metrics")).text)
        finally:
            await planes.engine.stop(drain_s=0.0)
        assert stats["policy"] == "lfu"
        [acme, blue] = stats["shares"]
        assert (acme["reserved_blocks"], acme["max_idle_blocks"]) == (10, 30)
        assert (blue["reserved_blocks"], blue["max_idle_blocks"]) == (0, 40)
        assert acme["idle_blocks"] == seen['prefold_blocks{state="idle"}'] > 0

    asyncio.run(asyncio.wait_for(main(), 60))
