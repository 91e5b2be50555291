"""Partition by counting: tenants hit what they would hit if they were alone."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prefold.server.config import TenantConfig
from support.asgi_call import request
from support.planes_rig import MODEL, Rig, RigSettings, open_rig
from support.sharing import done

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PATHS = (
    *("acme", "acme/search", "acme/search/deep", "acme/chat", "acme/chat/x", "acme2"),
    *("ac", "blue", "blue/sky", "blue/sky/high", "blue/sea", "bluer", "red", "red/a"),
    *("red/a/b", "red/a/c", "red/ab", "x", "x/acme", "z"),
)
TENANTS = tuple(
    TenantConfig(name=f"t{number}", domain=path) for number, path in enumerate(PATHS)
)
IS_SOAK = bool(os.environ.get("PREFOLD_SOAK"))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RULES = list(range(100, 164))


@dataclass(frozen=True)
class Question:
    """One request of a tenant."""

    tenant: TenantConfig
    route: str
    body: dict[str, Any] = field(hash=False)


def draw(tenant: TenantConfig, dice: random.Random) -> list[Question]:
    """Return what a tenant asks: prompts that others ask too, in its own ways."""
    own, asked = tenant.domain, []
    for _ in range(8):
        cut, more = dice.choice([40, 64]), dice.choice([0, 5, 30])
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "temperature": 0}
        body |= dice.choice([{}, {}, {"cache_salt": "one"}, {"cache_salt": "two"}])
        body |= dice.choice([{}, {"n": 2}])
        body |= dice.choice([{}, {"cache": {"domain": f"{own}/narrow"}}])
        if dice.random() < 0.4:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        route = dice.choice([COMPLETIONS, CHAT])
        if route == CHAT:
            text = "the rules are the same for all of us " * 3
            body["messages"] = [{"role": "user", "content": text[: cut + more]}]
        else:
            body["prompt"] = [*RULES[:cut], *range(more)]
        asked.append(Question(tenant, route, body))
    return asked


async def usage_of(rig: Rig, question: Question) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {rig.keys[question.tenant.name]}"}
    answer = await request(
        rig.planes.public, "POST", question.route, question.body, headers=headers
    )
    assert answer.status == 200, answer.body
    last = answer.events[-2] if question.body.get("stream") else answer.json
    usage: dict[str, Any] = last["usage"]
    return usage


def hits(usages: list[dict[str, Any]]) -> list[int]:
    return [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]


def make(directory: Path, name: str) -> Path:
    """Return a new directory."""
    made = directory / name
    made.mkdir()
    return made


async def ask_all(
    directory: Path, questions: list[Question], approved: str | None = None
) -> list[dict[str, Any]]:
    """Return the usage of each, asked one after another in a world of their own."""
    async with open_rig(RigSettings(directory=directory, tenants=TENANTS)) as rig:
        if approved is not None:
            await done(rig, "/cache/approve", prompt=RULES, domain=approved, label="rules")
        return [await usage_of(rig, question) for question in questions]


@pytest.mark.parametrize("approved", [None, "acme", "public"])
def test_usage_of_each_tenant_is_what_it_is_without_the_others(
    tmp_path: Path, approved: str | None
) -> None:
    async def main() -> None:
        dice = random.Random(4)  # noqa: S311 -- a test's dice
        questions = [each for tenant in TENANTS for each in draw(tenant, dice)]
        dice.shuffle(questions)
        together = await ask_all(make(tmp_path, "together"), questions, approved)
        assert sum(hits(together)) > 0
        for tenant in TENANTS if IS_SOAK else dice.sample(TENANTS, 5):
            its = [n for n, each in enumerate(questions) if each.tenant == tenant]
            alone = await ask_all(
                make(tmp_path, tenant.name), [questions[n] for n in its], approved
            )
            assert [together[n] for n in its] == alone

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("approved", ["public", "acme", "acme/search", "blue"])
def test_only_what_is_approved_is_hit_by_all_its_readers_at_once(
    tmp_path: Path, approved: str
) -> None:
    async def main() -> None:
        body = {"model": MODEL, "max_tokens": 1, "prompt": [*RULES, 1]}
        questions = [
            Question(tenant, COMPLETIONS, {**body, **salted})
            for tenant in TENANTS
            for salted in ({}, {"cache_salt": "one"}, {"cache_salt": "two"})
        ]
        found = hits(await ask_all(make(tmp_path, "one"), questions, approved))
        may_read = [
            approved == "public" or f"{each.tenant.domain}/".startswith(f"{approved}/")
            for each in questions
        ]
        assert found == [len(RULES) if may else 0 for may in may_read]

    asyncio.run(asyncio.wait_for(main(), 120))


def test_equal_requests_at_the_same_time_are_kept_apart(tmp_path: Path) -> None:
    async def main() -> None:
        body = {"model": MODEL, "max_tokens": 2, "prompt": [*RULES, 1], "n": 2}
        questions = [Question(tenant, COMPLETIONS, body) for tenant in TENANTS]
        async with open_rig(RigSettings(directory=tmp_path, tenants=TENANTS)) as rig:
            first = await asyncio.gather(*(usage_of(rig, each) for each in questions))
            assert hits(first) == [0] * len(TENANTS)
            again = await asyncio.gather(*(usage_of(rig, each) for each in questions))
            assert hits(again) == [len(RULES)] * len(TENANTS)

    asyncio.run(asyncio.wait_for(main(), 120))
