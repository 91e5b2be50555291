"""Routes of browsing: what is shown of runs, found, and done to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prefold.server.config import ServerConfig, TenantConfig
from support.planes_rig import MODEL, Rig, RigSettings, assert_error, open_rig
from support.sessions import BLOCK_SIZE

ACME = TenantConfig(name="acme", domain="acme")
BLUE = TenantConfig(name="blue", domain="acme/blue")
GLOBEX = TenantConfig(name="globex", domain="globex")
RULES = list(range(4 * BLOCK_SIZE))

Check = Callable[[Rig, httpx2.AsyncClient], Awaitable[None]]


def run(check: Check, directory: Path, server: ServerConfig | None = None) -> None:
    async def main() -> None:
        settings = RigSettings(
            directory=directory,
            tenants=(ACME, BLUE, GLOBEX),
            server=server or ServerConfig(),
        )
        async with open_rig(settings) as rig, rig.admin() as admin:
            await check(rig, admin)

    asyncio.run(main())


async def warm(admin: httpx2.AsyncClient, prompt: object, tenant: str, **more: Any) -> None:
    body = {"prompt": prompt, "tenant": tenant, **more}
    answer = await admin.post("/cache/warm", json=body)
    assert answer.status_code == 200, answer.text


async def runs_of(admin: httpx2.AsyncClient, query: str = "") -> list[dict[str, Any]]:
    answer = await admin.get(f"/cache/runs{query}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def hit(admin: httpx2.AsyncClient, tenant: str, **more: Any) -> int:
    body = {"prompt": [*RULES, 200], "tenant": tenant, **more}
    [found] = (await admin.post("/cache/lookup", json=body)).json()["prompts"]
    return int(found["hit_tokens"])


# -- what is shown ---------------------------------------------------------------------


def test_runs_are_shown_with_whose_they_are_and_no_content(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme", cache_salt="canary", ttl_s=60, priority=5)
        answer = await admin.get("/cache/runs")
        assert "canary" not in answer.text
        [run_] = answer.json()["data"]
        assert (run_["domain"], run_["audience"], run_["is_salted"]) == (
            "acme",
            "own",
            True,
        )
        assert (run_["tokens"], run_["blocks"], run_["start"]) == (64, 4, 0)
        assert (run_["priority"], run_["pinned"], run_["approvals"]) == (5, False, [])
        assert 0 < run_["expires_in_s"] <= 60
        assert (run_["text"], run_["path"]) == (None, [])
        one = (await admin.get(f"/cache/runs/{run_['id']}")).json()
        assert {**one, **_TIMES} == {**run_, **_TIMES}

    run(check, tmp_path)


_TIMES = {"idle_s": 0, "age_s": 0, "expires_in_s": 0}


@pytest.mark.parametrize("is_allowed", [False, True])
def test_text_is_shown_only_where_the_configuration_allows_it(
    is_allowed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, "canary prompt of more than sixteen", "acme")
        [run_] = await runs_of(admin)
        for path in ("/cache/runs", f"/cache/runs/{run_['id']}"):
            assert ("canary" in (await admin.get(path)).text) == is_allowed
        found = await admin.post("/cache/search", json={"domain": "acme"})
        assert ("canary" in found.text) == is_allowed
        figures = (await admin.get("/cache/figures")).json()
        assert figures["shows_text"] == is_allowed

    run(check, tmp_path, ServerConfig(allow_prompt_text=is_allowed))


def test_pages_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, [[n] * BLOCK_SIZE for n in range(5)], "acme")
        shown, cursor = [], ""
        for _page in range(9):
            page = (await admin.get(f"/cache/runs?limit=2{cursor}")).json()
            assert page["children"] == 5
            shown += [each["id"] for each in page["data"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert len(shown) == len(set(shown)) == 5

    run(check, tmp_path)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=201", "limit"),
        ("?limit=x", "limit"),
        ("?cursor=x", "cursor"),
        ("?cursor=", "cursor"),
        (f"?parent={'x' * 65}", "parent"),
    ],
)
def test_bad_pages_are_refused(query: str, param: str, tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        assert param in assert_error(await admin.get(f"/cache/runs{query}"), 400)

    run(check, tmp_path)


def test_a_run_that_is_gone_is_not_found(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme")
        [run_] = await runs_of(admin)
        assert (await admin.post("/cache/reset", json={})).status_code == 200
        for path in (f"/cache/runs/{run_['id']}", f"/cache/runs?parent={run_['id']}"):
            assert "gone" not in path
            assert "any more" in assert_error(await admin.get(path), 404)
        for path in ("invalidate", "approve"):
            body = {"label": "x"} if path == "approve" else {}
            answer = await admin.post(f"/cache/runs/{run_['id']}/{path}", json=body)
            assert_error(answer, 404)
        for path in ("/cache/pin", "/cache/unpin"):
            assert_error(await admin.post(path, json={"run": run_["id"]}), 404)

    run(check, tmp_path)


# -- what is found ---------------------------------------------------------------------


def test_prompts_and_domains_are_found(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme")
        await warm(admin, RULES[: 2 * BLOCK_SIZE], "globex")

        async def found(**body: object) -> list[tuple[str, int | None]]:
            reply = (await admin.post("/cache/search", json=body)).json()
            assert reply["is_complete"]
            return [(it["run"]["domain"], it["matched_tokens"]) for it in reply["data"]]

        both = [("acme", 64), ("globex", 32)]
        assert await found(prompt=[*RULES, 7, 7]) == both
        assert await found(prompt=RULES, domain="glob") == [("globex", 32)]
        assert sorted(await found(domain="e")) == [("acme", None), ("globex", None)]
        assert await found(prompt=[250, 251]) == []

    run(check, tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"domain": ""},
        {"domain": "x" * 256},
        {"domain": 3},
        {"prompt": []},
        {"prompt": "x", "messages": []},
        {"prompt": [[1], [2]]},
        {"prompt": "x", "limit": 0},
        {"prompt": "x", "limit": 1000},
        {"prompt": "x", "other": 1},
    ],
)
def test_bad_searches_are_refused(body: dict[str, object], tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        assert_error(await admin.post("/cache/search", json=body), 400)

    run(check, tmp_path)


# -- what is done ----------------------------------------------------------------------


def test_a_run_is_dropped_with_what_continues_it(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        for last in (1, 2):
            await warm(admin, [*RULES, *([last] * BLOCK_SIZE)], "acme")
        await warm(admin, RULES, "globex")
        [_newer, top] = await runs_of(admin)
        [below, _below] = await runs_of(admin, f"?parent={top['id']}")
        answer = await admin.post(f"/cache/runs/{below['id']}/invalidate", json={})
        assert answer.json()["dropped_blocks"] == 1
        assert await hit(admin, "acme") == 64
        answer = await admin.post(f"/cache/runs/{top['id']}/invalidate", json={})
        assert answer.json()["dropped_blocks"] == 5
        assert await hit(admin, "acme") == 0
        assert await hit(admin, "globex") == 64

    run(check, tmp_path)


def test_a_salted_run_is_dropped_alone(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme")
        await warm(admin, RULES, "acme", cache_salt="secret")
        salted = next(it for it in await runs_of(admin) if it["is_salted"])
        await admin.post(f"/cache/runs/{salted['id']}/invalidate", json={})
        assert await hit(admin, "acme", cache_salt="secret") == 0
        assert await hit(admin, "acme") == 64

    run(check, tmp_path)


def test_part_of_a_block_is_too_little(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, [1, 2, 3, 4, 5], "acme")
        [run_] = await runs_of(admin)
        assert run_["is_partial"]
        for path, body in (("invalidate", {}), ("approve", {"label": "x"})):
            answer = await admin.post(f"/cache/runs/{run_['id']}/{path}", json=body)
            assert "less than a block" in assert_error(answer, 409)
        answer = await admin.post("/cache/pin", json={"run": run_["id"]})
        assert "whole blocks" in assert_error(answer, 400)

    run(check, tmp_path)


def test_a_run_is_approved_for_those_below_its_own_domain_only(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme")
        [run_] = await runs_of(admin)
        path = f"/cache/runs/{run_['id']}/approve"
        for domain in ("globex", "public", "acm"):
            answer = await admin.post(path, json={"label": "x", "domain": domain})
            assert "its own domain" in assert_error(answer, 403)
        assert await hit(admin, "blue") == 0
        answer = await admin.post(path, json={"label": "rules", "pinned": True})
        assert answer.json()["domain"] == "acme"
        assert await hit(admin, "blue") == 64
        assert await hit(admin, "globex") == 0
        [approved] = [it for it in await runs_of(admin) if it["approvals"]]
        [approval] = approved["approvals"]
        assert (approval["label"], approval["pinned"]) == ("rules", True)
        assert (approved["pinned"], approved["is_pin"], approved["leases"]) == (
            True,
            False,
            0,
        )
        answer = await admin.post(path, json={"label": "other"})
        assert "withdraw" in assert_error(answer, 409)

    run(check, tmp_path)


def test_what_a_salt_keeps_apart_is_not_approved(tmp_path: Path) -> None:
    async def check(_: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme", cache_salt="secret")
        [run_] = await runs_of(admin)
        answer = await admin.post(f"/cache/runs/{run_['id']}/approve", json={"label": "x"})
        assert "salt" in assert_error(answer, 409)
        assert await hit(admin, "acme") == 0

    run(check, tmp_path)


def test_a_run_is_pinned_and_unpinned(tmp_path: Path) -> None:
    async def check(rig: Rig, admin: httpx2.AsyncClient) -> None:
        await warm(admin, RULES, "acme")
        [run_] = await runs_of(admin)
        body = {"run": run_["id"]}
        pinned = (await admin.post("/cache/pin", json=body)).json()
        assert pinned == {"num_pinned_blocks": 4, "max_pinned_blocks": 819}
        [now] = await runs_of(admin)
        assert (now["pinned"], now["is_pin"], now["leases"]) == (True, True, 0)
        assert (await admin.get("/cache/stats")).json()["num_pinned_blocks"] == 4
        # Pinned for whoever has it; shared with nobody.
        assert await hit(admin, "blue") == 0
        unpinned = (await admin.post("/cache/unpin", json=body)).json()
        assert unpinned["num_pinned_blocks"] == 0
        assert "no pin ends" in assert_error(
            await admin.post("/cache/unpin", json=body), 404
        )
        await rig.planes.engine.call(lambda it: it.cache.check_invariants())

    run(check, tmp_path)


# -- figures ---------------------------------------------------------------------------


def test_the_figures_are_those_of_the_requests(tmp_path: Path) -> None:
    async def check(rig: Rig, admin: httpx2.AsyncClient) -> None:
        first = (await admin.get("/cache/figures")).json()
        assert (first["hits"], first["num_runs"]) == ([], 0)
        assert [each["hit"] for each in first["first_token"]] == ["none", "partial", "full"]
        body = {"model": MODEL, "prompt": RULES, "max_tokens": 1}
        async with rig.public("acme") as public:
            await public.post("/v1/completions", json=body)
            answer = await public.post("/v1/completions", json=body)
            assert answer.status_code == 200
        now = (await admin.get("/cache/figures")).json()
        total = [sum(it[name] for it in now["hits"]) for name in _HIT_NAMES]
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert total == [2, 128, cached]
        counts = {each["hit"]: each["requests"] for each in now["first_token"]}
        assert sum(counts.values()) == 2
        assert counts["none"] == 1
        assert now["tenants"] == ["acme", "blue", "globex"]
        assert now["block_bytes"] is None
        assert set(now["views"]) <= {"misses", "whatif", "worth"}
        for view in now["views"]:
            assert (await admin.get(f"/cache/{view}")).status_code == 200
        # An operator's warming is no request of anybody's.
        await warm(admin, [9] * BLOCK_SIZE, "acme")
        again = (await admin.get("/cache/figures")).json()
        assert sum(it["requests"] for it in again["hits"]) == 2

    run(check, tmp_path)


_HIT_NAMES = ("requests", "prompt_tokens", "hit_tokens")
