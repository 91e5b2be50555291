"""What tests of sharing ask both planes for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from prefold.engine.engine import Engine
from prefold.server.config import ServerConfig, TenantConfig
from support.planes_rig import MODEL, Rig, RigSettings, open_rig

#: Three whole blocks, and something after them.
RULES = list(range(48))
PROMPT = [*RULES, 7, 7, 7]

ROUTES = ("/v1/completions", "/v1/chat/completions")


def run(
    check: Callable[[Rig], Awaitable[None]],
    directory: Path,
    *tenants: TenantConfig,
    server: ServerConfig | None = None,
    **more: Any,
) -> None:
    """Run a check against planes of its own; one that hangs fails."""

    async def main() -> None:
        settings = RigSettings(
            directory=directory, tenants=tenants, server=server or ServerConfig(), **more
        )
        async with open_rig(settings) as rig:
            await check(rig)

    asyncio.run(asyncio.wait_for(main(), 60))


async def post(rig: Rig, path: str, body: dict[str, Any]) -> httpx2.Response:
    async with rig.admin() as admin:
        return await admin.post(path, json=body)


async def done(rig: Rig, path: str, **body: Any) -> Any:
    """Return the answer of the admin plane to what must succeed."""
    response = await post(rig, path, body)
    assert response.status_code == 200, response.text
    return response.json()


def body_of(path: str, prompt: Any, **more: Any) -> dict[str, Any]:
    """Return a request for a reply of one token to a prompt."""
    body = {"model": MODEL, "max_tokens": 1, "temperature": 0, **more}
    if path == "/v1/completions":
        return {**body, "prompt": prompt}
    # A chat's text says the same in the same tokens each time.
    messages = [{"role": "user", "content": " ".join(map(str, prompt))}]
    return {**body, "messages": messages}


async def ask(
    rig: Rig, tenant: str | None, prompt: Any, path: str = ROUTES[0], **more: Any
) -> httpx2.Response:
    async with rig.public(tenant) as client:
        return await client.post(path, json=body_of(path, prompt, **more))


async def hit(
    rig: Rig, tenant: str | None, prompt: Any, path: str = ROUTES[0], **more: Any
) -> int:
    """Return how many tokens of a prompt were found, and leave nothing behind."""
    cache = {"write": False, **more.pop("cache", {})}
    response = await ask(rig, tenant, prompt, path, cache=cache, **more)
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    found = usage["prompt_tokens_details"]["cached_tokens"]
    assert response.headers["x-prefold-cached-tokens"] == str(found)
    return int(found)


def check_idle(engine: Engine) -> dict[str, int]:
    """Check all accounts of an engine that has nothing to do; return its blocks."""
    engine.check_invariants()
    engine.cache.check_invariants()
    assert engine.num_open == 0
    counts = engine.cache.counts
    return {
        "private": counts.private,
        "shared": counts.shared,
        "idle": counts.idle,
        "free": counts.free,
    }
