"""The admin plane: who comes in, what is seen there, and what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from prefold.engine.engine import Engine
from prefold.errors import InvariantError
from prefold.server.config import ServerConfig, TenantConfig
from support.planes_rig import (
    MODEL,
    Rig,
    RigSettings,
    assert_error,
    client_of,
    open_rig,
)
from support.sessions import BLOCK_SIZE

#: The page's files.
PAGE_PATHS = [
    "/ui",
    *(f"/ui/{name}.js" for name in ("api", "app", "details", "dialogs", "dom", "explorer")),
    *(f"/ui/{name}.js" for name in ("figures", "format", "panels", "plots", "tree")),
    *("/ui/icon.svg", "/ui/style.css"),
]

#: Every route, and whether it asks for the token. A new one has to be entered here.
ROUTES = {
    ("GET", "/health/live"): False,
    ("GET", "/health/ready"): False,
    ("GET", "/health"): True,
    ("GET", "/metrics"): True,
    ("GET", "/cache/stats"): True,
    ("GET", "/cache/tree"): True,
    ("GET", "/cache/whatif"): True,
    ("GET", "/cache/worth"): True,
    ("GET", "/cache/figures"): True,
    ("GET", "/cache/runs"): True,
    ("GET", "/cache/runs/{id}"): True,
    ("POST", "/cache/runs/{id}/invalidate"): True,
    ("POST", "/cache/runs/{id}/approve"): True,
    ("POST", "/cache/search"): True,
    ("POST", "/cache/pin"): True,
    ("POST", "/cache/unpin"): True,
    ("GET", "/queue"): True,
    ("GET", "/requests/{request_id}/timing"): True,
    ("GET", "/cache/misses"): True,
    ("GET", "/cache/explain/{request_id}"): True,
    ("POST", "/cache/lookup"): True,
    ("POST", "/cache/warm"): True,
    ("POST", "/cache/reset"): True,
    ("POST", "/cache/approve"): True,
    ("GET", "/cache/approvals"): True,
    ("POST", "/cache/withdraw"): True,
    ("POST", "/cache/invalidate"): True,
    ("DELETE", "/domains/{path:path}"): True,
    ("GET", "/adapters"): True,
    ("POST", "/adapters"): True,
    ("DELETE", "/adapters/{name:path}"): True,
    ("POST", "/model/swap"): True,
    ("POST", "/model/reload-template"): True,
    ("GET", "/openapi.json"): True,
    ("HEAD", "/openapi.json"): True,
    # The page's own files: the same for everybody.
    **{(method, path): False for path in PAGE_PATHS for method in ("GET", "HEAD")},
}

#: Routes that this plane has and the other must not, and the reverse.
ADMIN_ONLY = [path for _, path in ROUTES if path not in ("/health", "/openapi.json")]
PUBLIC_ONLY = ["/v1/completions", "/v1/chat/completions", "/v1/models", "/tokenize"]

ACME = TenantConfig(name="acme", domain="acme")
BLUE = TenantConfig(name="blue", domain="blue/search")

Check = Callable[[Rig], Awaitable[None]]


def run(
    check: Check,
    directory: Path,
    *,
    tenants: tuple[TenantConfig, ...] = (),
    server: ServerConfig | None = None,
    num_blocks: int = 1024,
) -> None:
    """Run a check against planes of its own."""

    async def main() -> None:
        settings = RigSettings(
            directory=directory,
            tenants=tenants,
            server=server or ServerConfig(),
            num_blocks=num_blocks,
        )
        async with open_rig(settings) as rig:
            await check(rig)

    asyncio.run(main())


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    found = set()
    for context in iter_route_contexts(app.routes):
        for method in context.methods or ():
            found.add((method, str(context.path)))
    return found


def url_of(path: str) -> str:
    return (
        path.replace("{id}", "0-1")
        .replace("{request_id}", "abc")
        .replace("{path:path}", "nobody")
        .replace("{name:path}", "nothing")
    )


# -- who comes in ----------------------------------------------------------------------


def test_the_routes_are_exactly_these(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        assert routes_of(rig.planes.admin) == set(ROUTES)

    run(check, tmp_path)


def test_every_route_asks_for_the_token(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        wrong = [
            None,
            "",
            "Bearer",
            "Bearer ",
            f"Bearer {'x' * 68}",
            rig.token.authorization + "0",
            rig.token.authorization[:-1],
            rig.token.authorization.replace("Bearer", "Basic"),
            f"Bearer {rig.keys['acme']}",
            "Bearer \xff",
        ]
        for (method, path), is_guarded in ROUTES.items():
            for authorization in wrong:
                async with client_of(rig.planes.admin) as client:
                    headers = [
                        (b"authorization", value.encode("latin-1"))
                        for value in (authorization,)
                        if value is not None
                    ]
                    response = await client.request(
                        method, url_of(path), headers=headers, json={}
                    )
                if not is_guarded:
                    assert response.status_code == 200
                elif method != "HEAD":
                    message = assert_error(response, 401)
                    assert "admin token" in message
                    assert response.headers["www-authenticate"] == "Bearer"
                else:
                    assert response.status_code == 401

    run(check, tmp_path, tenants=(ACME,))


def test_the_token_opens_every_route(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            for method, path in ROUTES:
                response = await admin.request(method, url_of(path), json={})
                assert response.status_code != 401, path

    run(check, tmp_path)


@pytest.mark.parametrize("path", ["/", "/nothing", "/v1/models", "/cache", "/metrics/"])
def test_who_has_no_token_cannot_tell_which_routes_there_are(
    path: str, tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        async with client_of(rig.planes.admin) as client:
            assert_error(await client.get(path), 401)
        async with rig.admin() as admin:
            assert_error(await admin.get(path), 404)

    run(check, tmp_path)


def test_two_tokens_are_one_too_many(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with client_of(rig.planes.admin) as client:
            both = [("authorization", rig.token.authorization)] * 2
            assert_error(await client.get("/metrics", headers=both), 401)

    run(check, tmp_path)


def test_the_planes_have_none_of_each_others_routes(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            for path in PUBLIC_ONLY:
                assert_error(await admin.get(path), 404)
                assert_error(await admin.post(path, json={}), 404)
        for credential in (f"Bearer {rig.keys['acme']}", rig.token.authorization):
            async with client_of(rig.planes.public, credential) as public:
                for path in ADMIN_ONLY:
                    for method in ("GET", "POST"):
                        response = await public.request(method, url_of(path), json={})
                        # Who is nobody there is told nothing; a tenant finds no route.
                        is_tenant = credential != rig.token.authorization
                        assert_error(response, 404 if is_tenant else 401)

    run(check, tmp_path, tenants=(ACME,))


# -- what is seen ----------------------------------------------------------------------


def test_stats_add_up(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            await admin.post("/cache/warm", json={"prompt": "the order " * 20})
            stats = (await admin.get("/cache/stats")).json()
        blocks = stats["blocks"]
        assert blocks["total"] == 1024
        assert sum(blocks[state] for state in ("free", "private", "shared", "idle")) == 1024
        assert blocks["idle"] > 0
        assert blocks["private"] == blocks["shared"] == 0
        assert stats["capacity_tokens"] == 1024 * BLOCK_SIZE
        assert stats["num_leases"] == 0
        assert stats["model"] == MODEL

    run(check, tmp_path)


def test_the_tree_shows_tokens_blocks_and_whose_they_are(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            body = {"prompt": list(range(64)), "tenant": "blue", "cache_salt": "canary"}
            assert (await admin.post("/cache/warm", json=body)).status_code == 200
            response = await admin.get("/cache/tree")
        tree = response.json()
        [run_] = tree["runs"]
        assert (run_["tokens"], run_["blocks"], run_["start"]) == (64, 4, 0)
        assert (run_["domain"], run_["is_salted"]) == ("blue/search", True)
        assert (run_["audience"], run_["leases"], run_["text"]) == ("own", 0, None)
        assert tree["is_complete"] is True
        assert "canary" not in response.text

    run(check, tmp_path, tenants=(ACME, BLUE))


@pytest.mark.parametrize("server", [ServerConfig(), ServerConfig(allow_prompt_text=True)])
def test_text_is_shown_only_where_the_configuration_allows_it(
    server: ServerConfig, tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            body = {"prompt": "canary prompt of sixteen", "cache_salt": "secret-salt"}
            await admin.post("/cache/warm", json=body)
            text = (await admin.get("/cache/tree")).text
        assert ("canary prompt" in text) == server.allow_prompt_text
        assert "secret-salt" not in text

    run(check, tmp_path, server=server)


def test_the_tree_is_bounded(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            prompts = [[*range(32), *([number] * 16)] for number in range(40, 50)]
            await admin.post("/cache/warm", json={"prompt": prompts})
            for query, num_runs in (("max_nodes=4", 4), ("depth=1", 1), ("", 11)):
                tree = (await admin.get(f"/cache/tree?{query}")).json()
                assert len(tree["runs"]) == num_runs
                assert tree["is_complete"] == (num_runs == 11)
                assert tree["num_runs"] == 11
            for query in ("max_nodes=0", "depth=0", "max_nodes=x", "max_nodes=10001"):
                message = assert_error(await admin.get(f"/cache/tree?{query}"), 400)
                assert query.split("=")[0] in message

    run(check, tmp_path)


def test_health_tells_drained_from_broken(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            assert (await admin.get("/health")).json() == {"status": "ready"}
            assert (await admin.get("/health/ready")).json() == {"status": "ready"}
            assert (await admin.get("/health/live")).json() == {"status": "alive"}
            await rig.planes.engine.stop(drain_s=0.0)
            assert_error(await admin.get("/health/ready"), 503)

    run(check, tmp_path)


def test_a_broken_engine_is_reported_and_still_counted(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        def break_down(_: Engine) -> None:
            raise InvariantError("a bug")

        rig.engine.step = break_down  # type: ignore[method-assign, assignment]
        async with rig.admin() as admin, rig.public() as public:
            body = {"model": MODEL, "prompt": "x"}
            assert_error(await public.post("/v1/completions", json=body), 503)
            while rig.planes.engine.is_alive:  # noqa: ASYNC110 -- a thread's end
                await asyncio.sleep(0.01)
            assert_error(await admin.get("/health/live"), 503)
            assert (await admin.get("/health")).json() == {"status": "broken"}
            for path in ("/cache/stats", "/cache/tree", "/queue"):
                assert_error(await admin.get(path), 503)
            samples = await rig.samples()
        assert samples["prefold_engine_alive"] == 0

    run(check, tmp_path)


def test_the_queue_is_empty_when_nobody_asks(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            queue = (await admin.get("/queue")).json()
        assert queue == {
            "waiting": 0,
            "running": 0,
            "max_queued": 1024,
            "is_accepting": True,
        }

    run(check, tmp_path)


def test_a_requests_times_are_found_by_the_id_of_its_answer(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin, rig.public() as public:
            body = {"model": MODEL, "prompt": "the order " * 9, "n": 2, "max_tokens": 3}
            answer = await public.post("/v1/completions", json=body)
            request_id = answer.headers["x-request-id"]
            found = (await admin.get(f"/requests/{request_id}/timing")).json()
            assert_error(await admin.get("/requests/other/timing"), 404)
        assert found["request_id"] == request_id
        first, second = found["choices"]
        for choice in (first, second):
            assert choice["finish_reason"] == "length"
            assert 0 <= choice["queued_s"] <= choice["ttft_s"] <= choice["total_s"]
            assert choice["completion_tokens"] == 3
        assert first["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]

    run(check, tmp_path)


def test_equal_ids_of_requests_are_told_apart(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async def complete(tenant: str, num_words: int) -> int:
            async with rig.public(tenant) as public:
                body = {"model": MODEL, "prompt": "the " * num_words, "max_tokens": 1}
                headers = {"x-request-id": "mine"}
                reply = await public.post("/v1/completions", json=body, headers=headers)
            assert reply.headers["x-request-id"] == "mine"
            return int(reply.json()["usage"]["prompt_tokens"])

        async def ask(admin: httpx2.AsyncClient, query: str) -> list[int]:
            reply = await admin.get(f"/requests/mine/timing{query}")
            assert reply.status_code == 200, reply.text
            return [choice["prompt_tokens"] for choice in reply.json()["choices"]]

        async with rig.admin() as admin:
            await complete("acme", 3)
            second = await complete("acme", 5)
            # One tenant: its latest request, and nothing of the one before.
            assert await ask(admin, "") == [second]
            foreign = await complete("blue", 7)
            message = assert_error(await admin.get("/requests/mine/timing"), 400)
            assert "?tenant=" in message
            assert "acme, blue" in message
            assert await ask(admin, "?tenant=acme") == [second]
            assert await ask(admin, "?tenant=blue") == [foreign]
            named = (await admin.get("/requests/mine/timing?tenant=blue")).json()
            assert named["tenant"] == "blue"
            for path in ("mine/timing?tenant=canary", "other/timing?tenant=acme"):
                message = assert_error(await admin.get(f"/requests/{path}"), 404)
                assert "canary" not in message

    run(check, tmp_path, tenants=(ACME, BLUE))


# -- what it does ----------------------------------------------------------------------


def test_what_was_warmed_is_hit_on_every_route(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        messages = [{"role": "user", "content": "where is the parcel " * 8}]
        async with rig.admin() as admin, rig.public("blue") as public:
            for warm, path in (
                ({"prompt": "the order of things " * 8}, "/v1/completions"),
                ({"prompt": list(range(40, 140))}, "/v1/completions"),
                ({"messages": messages}, "/v1/chat/completions"),
            ):
                owner = {"tenant": "blue", "cache_salt": "s"}
                response = await admin.post("/cache/warm", json={**warm, **owner})
                [warmed] = response.json()["prompts"]
                assert warmed["cached_tokens"] == 0
                [found] = (
                    await admin.post("/cache/lookup", json={**warm, **owner})
                ).json()["prompts"]
                body = {"model": MODEL, "max_tokens": 2, "cache_salt": "s", **warm}
                usage = (await public.post(path, json=body)).json()["usage"]
                hit = usage["prompt_tokens_details"]["cached_tokens"]
                assert hit == warmed["hit_tokens"] == found["hit_tokens"]
                assert usage["prompt_tokens"] == warmed["prompt_tokens"]
                assert usage["prompt_tokens"] - hit <= 4

    run(check, tmp_path, tenants=(ACME, BLUE))


def test_what_was_warmed_for_one_tenant_is_nothing_to_another(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        prompt = {"prompt": "the order of things " * 8}
        async with rig.admin() as admin:
            await admin.post("/cache/warm", json={**prompt, "tenant": "blue"})
            for owner, hits in (
                ({"tenant": "blue"}, True),
                ({"tenant": "acme"}, False),
                ({"tenant": "blue", "cache_salt": "s"}, False),
            ):
                response = await admin.post("/cache/lookup", json={**prompt, **owner})
                [found] = response.json()["prompts"]
                assert (found["hit_tokens"] > 0) == hits

    run(check, tmp_path, tenants=(ACME, BLUE))


def test_a_lookup_explains_and_changes_nothing(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            for _ in range(2):
                response = await admin.post("/cache/lookup", json={"prompt": "x" * 64})
                [found] = response.json()["prompts"]
                assert found == {
                    "prompt_tokens": 64,
                    "hit_tokens": 0,
                    "miss": "never_seen",
                    "explanation": "nothing is cached from token 0 on",
                }
            stats = (await admin.get("/cache/stats")).json()
        assert stats["blocks"]["free"] == stats["blocks"]["total"]

    run(check, tmp_path)


def test_a_reset_drops_everything_and_hands_out_a_receipt(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        prompt = {"prompt": "the order of things " * 8}
        async with rig.admin() as admin:
            await admin.post("/cache/warm", json=prompt)
            held = (await admin.get("/cache/stats")).json()["blocks"]["idle"]
            receipt = (await admin.post("/cache/reset", json={})).json()
            assert receipt == {
                "dropped_blocks": held,
                "leased_blocks": 0,
                "is_upper_bound": False,
                "ended_approvals": 0,
                "num_invalidations": 1,
            }
            [found] = (await admin.post("/cache/lookup", json=prompt)).json()["prompts"]
            assert found["hit_tokens"] == 0
            assert (await admin.get("/cache/tree")).json()["runs"] == []

    run(check, tmp_path)


def test_warming_without_room_says_so(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            message = assert_error(
                await admin.post("/cache/warm", json={"prompt": [1] * 500}), 400
            )
            assert "cache" in message

    run(check, tmp_path, num_blocks=8)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "either prompt or messages"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "either"),
        ({"prompt": "x", "tools": []}, "tools needs messages"),
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "prompt must be"),
        ({"prompt": ["x"] * 257}, "prompt must be"),
        ({"prompt": 7}, "prompt must be"),
        ({"prompt": [-1]}, "outside the vocabulary"),
        ({"prompt": [10**30]}, "64 bits"),
        ({"prompt": "x " * 9999}, "shorten"),
        ({"prompt": "x", "tenant": 7}, "tenant must be a text"),
        ({"prompt": "x", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "x", "cache_salt": "s" * 257}, "cache_salt"),
        ({"prompt": "x", "cache_salt": 7}, "cache_salt"),
        ({"prompt": "x", "canary": 1}, "leave it out"),
        ({"messages": []}, "messages"),
    ],
)
@pytest.mark.parametrize("path", ["/cache/warm", "/cache/lookup"])
def test_bad_prompts_are_a_sentence(
    path: str, body: dict[str, object], words: str, tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            assert words in assert_error(await admin.post(path, json=body), 400)

    run(check, tmp_path)


def test_several_tenants_have_to_be_told_apart(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            response = await admin.post("/cache/lookup", json={"prompt": "x"})
            assert "tenant is missing" in assert_error(response, 400)
            body = {"prompt": "x", "tenant": "canary"}
            message = assert_error(await admin.post("/cache/lookup", json=body), 404)
            assert "there is acme, blue" in message
            assert "canary" not in message

    run(check, tmp_path, tenants=(ACME, BLUE))


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"a": 1}', 400),
        (b"\xff\xfe", 400),
        (b"[" * 100, 400),
        (b'{"a": "' + b"x" * 5000 + b'"}', 413),
    ],
)
def test_bad_bodies_are_a_sentence(content: bytes, status: int, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            headers = {"content-type": "application/json"}
            for path in ("/cache/warm", "/cache/lookup", "/cache/reset"):
                response = await admin.post(path, content=content, headers=headers)
                assert_error(response, status)

    run(check, tmp_path, server=ServerConfig(max_body_bytes=5000))


def test_other_methods_are_refused(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            assert_error(await admin.get("/cache/reset"), 405)
            assert_error(await admin.post("/metrics", json={}), 405)
            assert_error(await admin.put("/cache/warm", json={}), 405)

    run(check, tmp_path)


def test_warming_leaves_nothing_for_a_tenant_that_is_not_cached(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            body = {"tenant": "acme", "prompt": [9] * 64}
            warmed = await admin.post("/cache/warm", json=body)
            assert warmed.status_code == 200
            assert warmed.json()["prompts"][0]["hit_tokens"] == 0
            assert rig.engine.cache.snapshot().num_nodes <= 1

    run(
        check,
        tmp_path,
        tenants=(TenantConfig(name="acme", may_read=False, may_write=False),),
    )
