"""Who hits whose KV, through HTTP: tenants side by side, tenants below tenants, domains."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from prefold.server.config import TenantConfig
from support.planes_rig import Rig, assert_error
from support.sharing import PROMPT, ROUTES, RULES, ask, body_of, done, hit, run

TENANTS = (
    TenantConfig(name="acme"),
    TenantConfig(name="search", domain="acme/search"),
    TenantConfig(name="deep", domain="acme/search/deep"),
    TenantConfig(name="globex"),
)
NAMES = [tenant.name for tenant in TENANTS]


async def write(rig: Rig, tenant: str, prompt: Any, path: str, **more: Any) -> int:
    """Let a tenant leave a prompt behind; return how much of it can be found then."""
    response = await ask(rig, tenant, prompt, path, **more)
    assert response.status_code == 200, response.text
    found = await hit(rig, tenant, prompt, path, **more)
    assert found >= 16
    return found


@pytest.mark.parametrize("path", ROUTES)
def test_equal_prompts_are_found_within_a_tenant_and_never_across(
    path: str, tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        for number, owner in enumerate(NAMES):
            # All chats begin alike: what a tenant has of the last one would be found.
            await done(rig, "/cache/reset")
            prompt = [number, *range(50)]
            full = await write(rig, owner, prompt, path)
            for reader in NAMES:
                found = await hit(rig, reader, prompt, path)
                assert found == (full if reader == owner else 0), (owner, reader)

    run(check, tmp_path, *TENANTS)


@pytest.mark.parametrize("path", ROUTES)
def test_domains_and_salts_of_one_tenant_are_as_far_apart(
    path: str, tmp_path: Path
) -> None:
    places: list[dict[str, Any]] = [
        {},
        {"cache": {"domain": "acme/a"}},
        {"cache": {"domain": "acme/a/b"}},
        {"cache_salt": "x"},
        {"cache": {"domain": "acme/a"}, "cache_salt": "x"},
    ]

    async def check(rig: Rig) -> None:
        for number, place in enumerate(places):
            await done(rig, "/cache/reset")
            prompt = [number, *range(50)]
            full = await write(rig, "acme", prompt, path, **place)
            for other in places:
                found = await hit(rig, "acme", prompt, path, **other)
                assert found == (full if other == place else 0), (place, other)
            named = {"cache": {"domain": "acme"}}
            assert await hit(rig, "acme", prompt, path, **named) == (0 if number else full)

    run(check, tmp_path, *TENANTS)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "domain", ["globex", "public", "acme/search", "acme/search/x", "acme/search/deep", "ac"]
)
def test_asking_outside_the_domain_is_refused_in_one_sentence(
    domain: str, path: str, tmp_path: Path
) -> None:
    async def check(rig: Rig) -> None:
        for more in ({}, {"stream": True}):
            body = body_of(path, PROMPT, cache={"domain": domain}, **more)
            async with rig.public("acme") as client:
                response = await client.post(path, json=body)
            message = assert_error(response, 403)
            assert message == (
                "cache.domain must be 'acme', or a domain below it that is nobody else's"
            )
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("domain_not_allowed", "cache.domain")
        samples = await rig.samples()
        assert samples['prefold_requests_total{outcome="refused"}'] == 2
        assert rig.engine.cache.snapshot().num_nodes <= 1

    run(check, tmp_path, *TENANTS)


_MALFORMED: list[tuple[dict[str, Any], str]] = [
    *(
        ({"domain": path}, "cache.domain must be a path of a-z")
        for path in ("", "/", "acme/", "/acme", "acme//a", "acme/..", ".", "ACME", "a b", 5)
    ),
    ({"domain": "acme/" + "x" * 251}, "cache.domain must be a path"),
    ({"domain": "acme/canary\n"}, "cache.domain must be a path"),
    ({"approved": ["public", "a//b"]}, "cache.approved"),
    ({"approved": "public"}, "cache.approved must be a list"),
    ({"approved": ["a"] * 65}, "cache.approved must be a list"),
    ({"approved": [None]}, "cache.approved must be a list"),
    ({"read": 1}, "cache.read must be true or false"),
    ({"domian": "acme"}, "cache.domian is not a field"),
]


def test_paths_that_are_none_are_refused_without_being_repeated(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.public("acme") as client:
            for (cache, words), path in itertools.product(_MALFORMED, ROUTES):
                response = await client.post(path, json=body_of(path, PROMPT, cache=cache))
                assert words in assert_error(response, 400), cache
                assert "canary" not in response.text

    run(check, tmp_path, *TENANTS)


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_approved_is_found_below_and_nowhere_else(
    path: str, tmp_path: Path
) -> None:
    below = {
        "public": NAMES,
        "acme": ["acme", "search", "deep"],
        "acme/search": ["search", "deep"],
        "globex": ["globex"],
        "acme/chat": [],
    }

    async def check(rig: Rig) -> None:
        for number, (domain, readers) in enumerate(below.items()):
            ids = [number, *range(50)]
            approving: dict[str, Any] = {"prompt": ids}
            if path == ROUTES[1]:
                approving = {"messages": body_of(path, ids)["messages"]}
            made = await done(rig, "/cache/approve", **approving, domain=domain, label="a")
            for reader in NAMES:
                found = await hit(rig, reader, ids, path)
                assert found == (made["tokens"] if reader in readers else 0)
            narrow = {"cache": {"domain": "acme/chat"}}
            is_below = domain in ("public", "acme", "acme/chat")
            wanted = made["tokens"] if is_below else 0
            assert await hit(rig, "acme", ids, path, **narrow) == wanted
            assert await hit(rig, "acme", ids, path, **narrow, cache_salt="x") == wanted
            await done(rig, "/cache/withdraw", id=made["id"])
            for reader in NAMES:
                assert await hit(rig, reader, ids, path) == 0

    run(check, tmp_path, *TENANTS)


def test_a_tenant_reads_the_approved_domains_that_it_may_and_wants(
    tmp_path: Path,
) -> None:
    tenants = (
        TenantConfig(name="all", domain="acme/all"),
        TenantConfig(name="none", domain="acme/none", approved=()),
        TenantConfig(name="some", domain="acme/some", approved=("acme", "acme/some/x")),
    )
    prompts = {"public": [1] * 20, "acme": [2] * 20, "acme/some/x": [3] * 20}

    async def check(rig: Rig) -> None:
        for domain, prompt in prompts.items():
            await done(rig, "/cache/approve", prompt=prompt, domain=domain, label="a")

        async def found(tenant: str, **cache: Any) -> list[int]:
            return [await hit(rig, tenant, each, cache=cache) for each in prompts.values()]

        assert await found("all") == [16, 16, 0]
        assert await found("all", approved=["public"]) == [16, 0, 0]
        assert await found("all", approved=["globex"]) == [0, 0, 0]
        assert await found("none") == [0, 0, 0]
        assert await found("none", approved=["public"]) == [0, 0, 0]
        assert await found("some") == [0, 16, 0]
        assert await found("some", approved=["public", "acme"]) == [0, 16, 0]
        assert await found("some", domain="acme/some/x") == [0, 16, 16]
        assert await found("some", domain="acme/some/x", approved=["acme/some/x"]) == [
            *(0, 0, 16)
        ]
        assert await found("all", read=False) == [0, 0, 0]

    run(check, tmp_path, *tenants)


def test_own_continuations_hang_below_what_is_approved(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await done(rig, "/cache/approve", prompt=RULES, domain="public", label="a")
        longer = [*RULES, *range(60, 100)]
        for tenant in ("acme", "globex"):
            assert await hit(rig, tenant, longer) == 48
            await write(rig, tenant, longer, ROUTES[0])
            assert await hit(rig, tenant, longer) == 87
        assert await hit(rig, "search", longer) == 48

    run(check, tmp_path, *TENANTS)


def test_a_tenant_that_may_not_read_or_write_does_not(tmp_path: Path) -> None:
    tenants = (
        TenantConfig(name="reader", may_write=False),
        TenantConfig(name="writer", may_read=False),
    )

    async def check(rig: Rig) -> None:
        cache = {"read": True, "write": True}
        for _ in range(2):
            for tenant in ("reader", "writer"):
                answer = await ask(rig, tenant, PROMPT, cache=cache)
                usage = answer.json()["usage"]
                assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        async with rig.admin() as admin:
            runs = (await admin.get("/cache/tree")).json()["runs"]
        assert {run_["domain"] for run_ in runs} == {"writer"}
        await done(rig, "/cache/approve", prompt=RULES, domain="public", label="a")
        assert await hit(rig, "reader", PROMPT) == 48
        answer = await ask(rig, "writer", PROMPT)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    run(check, tmp_path, *tenants)
