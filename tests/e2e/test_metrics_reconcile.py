"""After a scripted load every metric equals what its clients were told."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
import torch

from prefold.blocks.table import BlockCopy
from prefold.engine.batch import StepPlan
from prefold.engine.config import SchedulerConfig
from prefold.server.config import ServerConfig, TenantConfig
from support.planes_rig import MODEL, Rig, RigSettings, client_of, open_rig, total
from support.sessions import ChainRunner

pytestmark = pytest.mark.e2e


ACME = TenantConfig(name="acme")
BLUE = TenantConfig(name="blue", max_concurrent=16)

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass
class Ledger:
    """What clients were told, added up by tenant."""

    prompt: Counter[str] = field(default_factory=Counter)
    query: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)
    reply: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    responses: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    num_queries: int = 0
    num_first_tokens: Counter[str] = field(default_factory=Counter)
    num_next_tokens: Counter[str] = field(default_factory=Counter)


class Script:
    """Sends requests and keeps the ledger."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.ledger = Ledger()

    async def send(
        self, tenant: str, path: str, body: dict[str, object]
    ) -> httpx2.Response:
        async with self.rig.public(tenant) as public:
            response = await public.post(path, json={"model": MODEL, **body})
        self.ledger.responses["public", path, response.status_code] += 1
        await self._note(tenant, body, response)
        return response

    async def _note(
        self, tenant: str, body: dict[str, object], response: httpx2.Response
    ) -> None:
        ledger = self.ledger
        request_id = response.headers["x-request-id"]
        async with self.rig.admin() as admin:
            timing = await admin.get(f"/requests/{request_id}/timing")
        route = "/requests/{request_id}/timing"
        ledger.responses["admin", route, timing.status_code] += 1
        if timing.status_code != 200:
            ledger.outcomes["refused"] += 1
            return
        cache = body.get("cache")
        is_query = not isinstance(cache, dict) or cache["read"]
        for choice in timing.json()["choices"]:
            outcome = choice["finish_reason"]
            ended = outcome if outcome in ("aborted", "failed") else "finished"
            ledger.outcomes[ended] += 1
            ledger.prompt[tenant] += choice["prompt_tokens"]
            ledger.reply[tenant] += choice["completion_tokens"]
            assert 0 <= choice["cached_tokens"] <= choice["prompt_tokens"]
            if is_query and choice["miss"] is not None:
                ledger.query[tenant] += choice["prompt_tokens"]
                ledger.hit[tenant] += choice["cached_tokens"]
                ledger.num_queries += 1
            ledger.num_first_tokens[choice["hit"]] += choice["ttft_s"] is not None
            ledger.num_next_tokens[choice["hit"]] += choice["tpot_s"] is not None
        if response.status_code == 200 and body.get("n", 1) == 1:
            [choice] = timing.json()["choices"]
            usage = usage_of(response)
            assert usage["prompt_tokens"] == choice["prompt_tokens"]
            assert usage["completion_tokens"] == choice["completion_tokens"]
            details = usage["prompt_tokens_details"]
            assert isinstance(details, dict)
            assert details["cached_tokens"] == choice["cached_tokens"]

    async def check(self) -> dict[str, float]:
        """Compare the ledger, the engine's own counters and a scrape."""
        seen = await self.rig.samples()
        ledger, engine = self.ledger, self.rig.engine
        for name, by_tenant in (
            ("prompt", ledger.prompt),
            ("query", ledger.query),
            ("hit", ledger.hit),
            ("completion", ledger.reply),
        ):
            for tenant in ("acme", "blue"):
                key = f'prefold_{name}_tokens_total{{tenant="{tenant}"}}'
                assert seen[key] == by_tenant[tenant], key
            assert total(seen, f"prefold_{name}_tokens_total") == by_tenant.total()
        for outcome in ("finished", "aborted", "failed", "refused"):
            key = f'prefold_requests_total{{outcome="{outcome}"}}'
            assert seen[key] == ledger.outcomes[outcome], key
        assert seen["prefold_hit_length_tokens_sum"] == ledger.hit.total()
        assert seen["prefold_hit_length_tokens_count"] == ledger.num_queries
        for hit in ("none", "partial", "full"):
            first = seen[f'prefold_time_to_first_token_seconds_count{{hit="{hit}"}}']
            assert first == ledger.num_first_tokens[hit]
            later = seen[f'prefold_time_per_output_token_seconds_count{{hit="{hit}"}}']
            assert later == ledger.num_next_tokens[hit]
        for (plane, route, status), count in ledger.responses.items():
            key = (
                f'prefold_http_responses_total{{plane="{plane}",route="{route}",'
                f'status="{status}"}}'
            )
            assert seen[key] == count, key
        await self._check_engine(seen)
        engine.check_invariants()
        return seen

    async def _check_engine(self, seen: dict[str, float]) -> None:
        counters, cache = self.rig.engine.counters, self.rig.engine.cache
        snapshot = cache.snapshot()
        assert seen["prefold_steps_total"] == counters.num_steps
        assert seen["prefold_computed_tokens_total"] == counters.num_computed_tokens
        assert seen["prefold_preemptions_total"] == counters.num_preemptions
        assert seen["prefold_evicted_blocks_total"] == snapshot.num_evicted_blocks
        assert seen['prefold_blocks{state="free"}'] == snapshot.blocks.free
        assert seen['prefold_blocks{state="idle"}'] == snapshot.blocks.idle
        # Nobody runs: what is cached is reclaimable, and nothing is lost.
        assert seen['prefold_blocks{state="private"}'] == 0
        assert seen['prefold_blocks{state="shared"}'] == 0
        assert total(seen, "prefold_blocks") == cache.num_blocks
        assert seen["prefold_running_sequences"] == seen["prefold_queue_length"] == 0
        assert seen["prefold_metric_errors_total"] == 0


def usage_of(response: httpx2.Response) -> dict[str, object]:
    if not response.headers["content-type"].startswith("text/event-stream"):
        usage: dict[str, object] = response.json()["usage"]
        return usage
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    last: dict[str, object] = json.loads(lines[-2])["usage"]
    return last


def text(number: int, num_words: int = 12) -> str:
    return " ".join(f"word{number}x{index}" for index in range(num_words))


def test_a_scripted_load_reconciles(tmp_path: Path) -> None:
    async def main() -> None:
        settings = RigSettings(
            directory=tmp_path,
            tenants=(ACME, BLUE),
            num_blocks=160,
            scheduler=SchedulerConfig(max_step_tokens=64, max_running=8),
        )
        async with open_rig(settings) as rig:
            script = Script(rig)
            await _distinct(script)
            seen = await script.check()
            # A pool that fills up is the cache, not a leak.
            assert seen['prefold_blocks{state="idle"}'] > 0
            await _repeated(script)
            await _refused(script)
            await _failed(script)
            await _crowded(script)
            seen = await script.check()
        assert seen["prefold_preemptions_total"] > 0
        assert seen["prefold_evicted_blocks_total"] > 0
        assert seen["prefold_prefill_seconds_saved_total"] > 0
        for hit in ("none", "partial", "full"):
            assert seen[f'prefold_time_to_first_token_seconds_count{{hit="{hit}"}}'] > 0
        for outcome in ("finished", "failed", "refused"):
            assert seen[f'prefold_requests_total{{outcome="{outcome}"}}'] > 0

    asyncio.run(main())


async def _distinct(script: Script) -> None:
    for number in range(24):
        await script.send("acme", COMPLETIONS, {"prompt": text(number), "max_tokens": 4})


async def _repeated(script: Script) -> None:
    prompt = {"prompt": text(100), "max_tokens": 4}
    await script.send("acme", COMPLETIONS, prompt)
    await script.send("acme", COMPLETIONS, prompt)
    await script.send("acme", COMPLETIONS, {**prompt, "prompt": text(100) + text(101)})
    await script.send("acme", COMPLETIONS, {**prompt, "max_tokens": 1})
    await script.send("acme", COMPLETIONS, {**prompt, "max_tokens": 0})
    # Another tenant computes the same for itself.
    await script.send("blue", COMPLETIONS, prompt)
    await script.send("blue", COMPLETIONS, {**prompt, "cache": {"read": False}})
    await script.send(
        "blue", COMPLETIONS, {**prompt, "cache": {"read": False, "write": False}}
    )
    await script.send("blue", COMPLETIONS, {**prompt, "n": 3})
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    await script.send("blue", COMPLETIONS, {**prompt, **stream})
    messages = [{"role": "user", "content": text(102)}]
    await script.send("blue", CHAT, {"messages": messages, "max_tokens": 4})
    await script.send("blue", CHAT, {"messages": messages, "max_tokens": 4, **stream})


async def _refused(script: Script) -> None:
    bodies: list[dict[str, object]] = [
        {"prompt": ""},
        {"prompt": 7},
        {"prompt": "x", "n": 1000},
        {"prompt": "x", "temperature": -1},
        {"prompt": "x " * 9000},
        {"prompt": "x", "unknown": 1},
        {"prompt": "x", "model": "other"},
    ]
    for body in bodies:
        response = await script.send("acme", COMPLETIONS, body)
        assert 400 <= response.status_code < 500
    # Without a key it is not even a request for tokens.
    async with client_of(script.rig.planes.public) as nobody:
        response = await nobody.post(COMPLETIONS, json={"model": MODEL, "prompt": "x"})
    assert response.status_code == 401


async def _failed(script: Script) -> None:
    script.rig.runner.fails_at = script.rig.runner._num_calls + 1
    response = await script.send(
        "acme", COMPLETIONS, {"prompt": text(200), "max_tokens": 4}
    )
    assert response.status_code == 500


async def _crowded(script: Script) -> None:
    """Send more at once than there are blocks for."""
    answers = await asyncio.gather(
        *(
            script.send("blue", COMPLETIONS, {"prompt": text(n, 30), "max_tokens": 300})
            for n in range(300, 312)
        )
    )
    assert {answer.status_code for answer in answers} == {200}


class SlowRunner:
    """Takes its time for each step."""

    def __init__(self, runner: ChainRunner) -> None:
        self._runner = runner

    def execute(self, plan: StepPlan) -> torch.Tensor:
        time.sleep(0.02)
        return self._runner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._runner.copy_blocks(copies)


@pytest.mark.parametrize("is_first", [True, False])
def test_requests_that_take_too_long_are_aborted_once(
    tmp_path: Path, *, is_first: bool
) -> None:
    async def main() -> None:
        settings = RigSettings(
            directory=tmp_path,
            tenants=(ACME, BLUE),
            server=ServerConfig(request_timeout_s=0.15),
            # With one at a time, the others are aborted while they wait.
            scheduler=SchedulerConfig(max_step_tokens=64, max_running=1 if is_first else 8),
            wrap_runner=SlowRunner,
        )
        async with open_rig(settings) as rig:
            script = Script(rig)
            body: dict[str, object] = {"prompt": text(1), "max_tokens": 500}
            answers = await asyncio.gather(
                *(script.send("acme", COMPLETIONS, body) for _ in range(4))
            )
            assert {answer.status_code for answer in answers} == {503}
            seen = await script.check()
        assert seen['prefold_requests_total{outcome="aborted"}'] == 4
        assert total(seen, "prefold_requests_total") == 4

    asyncio.run(main())
