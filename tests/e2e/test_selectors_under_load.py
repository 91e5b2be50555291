"""Selectors under load: what a receipt covers is found by nobody who is served later.

Clients of nested and salted domains send prompts that share their beginnings, while an
operator approves, withdraws, invalidates and revokes. The cache keeps a ledger, which
says after each receipt what may still be found; see ``support.ledger_cache``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefold.blocks.table import TOKEN_DTYPE
from prefold.engine.config import SchedulerConfig
from prefold.engine.engine import Engine
from prefold.identity.domain import Domain
from prefold.server.config import ServerConfig, TenantConfig
from support.asgi_call import Answer, AsgiCall, request
from support.ledger_cache import NEVER_SERVED, LedgerCache
from support.planes_rig import MODEL, Rig, RigSettings, open_rig
from support.public_plane import until
from support.sessions import BLOCK_SIZE
from support.settable_clock import SettableClock
from support.sharing import check_idle
from support.tiny_models import make_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

IS_SOAK = bool(os.environ.get("PREFOLD_SOAK"))
NUM_REQUESTS, NUM_SELECTORS = (2000, 200) if IS_SOAK else (200, 20)
NUM_CLIENTS = 12
#: Blocks of a pool that a few requests fill.
SMALL = 40

TENANTS = tuple(
    TenantConfig(name=name, domain=domain)
    for name, domain in {
        "acme": "acme",
        "search": "acme/search",
        "deep": "acme/search/deep",
        "chat": "acme/chat",
        "blue": "blue",
        "sky": "blue/sky",
        "other": "other",
        "near": "acme2",
        "left-1": "left/one",
        "left-2": "left/two",
        "left-3": "left/two/three",
        "left-4": "left4",
    }.items()
)
#: Their keys go with their domains in the course of time.
LEAVING = ("left/one", "left/two", "left4")
SALTS = (None, None, None, "s1", "s2")
LETTERS = "abcdefghijklmno"
_IDS = [make_tokenizer().get_vocab()[letter] for letter in LETTERS]


def expected_reply(prompt: list[int], num_tokens: int) -> str:
    """Return what the runner says after a prompt, whatever is cached of it."""
    tokens, reply = list(prompt), ""
    for _ in range(num_tokens):
        known = np.array(tokens, dtype=np.int64)
        digest = int((known * (np.arange(len(known)) % 97 + 1)).sum())
        reply += LETTERS[digest % len(LETTERS)]
        tokens.append(_IDS[digest % len(LETTERS)])
    return reply


class Load:
    """Clients and an operator of one rig.

    Attributes:
        statuses: How the requests were answered; 499 for those nobody waited for.
        done: What the operator did.
    """

    def __init__(
        self, rig: Rig, cache: LedgerCache, clock: SettableClock, seed: int
    ) -> None:
        self.rig = rig
        self.cache = cache
        self.clock = clock
        self.dice = random.Random(seed)  # noqa: S311 -- a test's dice
        dice = self.dice
        roots = [self._draw(2 * BLOCK_SIZE) for _ in range(3)]
        self.families = [
            dice.choice(roots) + self._draw(dice.randrange(BLOCK_SIZE, 4 * BLOCK_SIZE))
            for _ in range(8)
        ]
        self.gate = asyncio.Event()
        self.gate.set()
        self.num_sent = 0
        self.num_open = 0
        self.num_temporary = 0
        self.leaving = list(LEAVING)
        self.revoked: list[Domain] = []
        self.approvals: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.done: Counter[str] = Counter()

    def _draw(self, num_tokens: int) -> list[int]:
        return [self.dice.randrange(256) for _ in range(num_tokens)]

    # -- clients ---------------------------------------------------------------------

    async def client(self) -> None:
        while self.num_sent < NUM_REQUESTS:
            await self.gate.wait()
            if self.num_sent >= NUM_REQUESTS:
                return
            self.num_sent += 1
            self.num_open += 1
            try:
                await self._ask()
            finally:
                self.num_open -= 1

    async def _ask(self) -> None:
        dice = self.dice
        tenant = dice.choice(TENANTS)
        path = dice.choice([tenant.domain, f"{tenant.domain}/t{self.num_temporary}"])
        salt = dice.choice(SALTS)
        prompt = dice.choice(self.families) + self._draw(dice.choice([0, 3, 20, 40]))
        size, n = dice.randrange(1, 40), dice.choice([1, 1, 1, 2])
        is_streamed, leaves = dice.random() < 0.4, dice.random() < 0.15
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": size,
            "temperature": 0,
            "ignore_eos": True,
            "n": n,
            "cache": {"domain": path, "write": dice.random() < 0.9},
        }
        if is_streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if salt is not None:
            body["cache_salt"] = salt
        domain = Domain(path, None if salt is None else salt.encode())
        was_revoked = self._is_revoked(domain)
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {self.rig.keys[tenant.name]}",
        }
        call = AsgiCall(self.rig.planes.public, "POST", "/v1/completions", headers)
        call.feed(json.dumps(body).encode()).start()
        if leaves:
            for _ in range(dice.randrange(60)):
                await asyncio.sleep(0)
            call.disconnect()
            await call.wait()
            self.statuses[499] += 1
            return
        answer = await call.answer()
        self.statuses[answer.status] += 1
        if answer.status != 200:
            assert answer.status in (401, 403, 429, 503), answer.body
            assert answer.status in (429, 503) or self._is_revoked(domain)
            return
        assert not was_revoked
        texts, usage = read_answer(answer, n, is_streamed=is_streamed)
        if usage is None:
            # Its domain was revoked in the middle of the stream.
            assert self._is_revoked(domain)
            return
        assert texts == [expected_reply(prompt, size)] * n
        found = usage["prompt_tokens_details"]["cached_tokens"]
        key = (domain, np.array(prompt, dtype=TOKEN_DTYPE).tobytes())
        # A second choice is spared what the first one computed.
        assert n > 1 or found <= self.cache.ledger.hits[key]

    def _is_revoked(self, domain: Domain) -> bool:
        return any(domain.is_within(each) for each in self.revoked)

    # -- the operator ----------------------------------------------------------------

    async def operator(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = []
        for number in range(NUM_SELECTORS):
            await until(lambda at=number: self.num_sent >= self._due(at))  # type: ignore[misc]
            await self._approve()
            await self._pass_time(self.dice.random() * 4)
            if not kinds:
                kinds = [
                    self._everything, self._field, self._unknown_field, self._approval,
                    self._prompt, self._prompt_of_all, self._age, self._withdraw,
                    self._domain, self._only_domain, self._abort, self._drain,
                ]  # fmt: skip
                self.dice.shuffle(kinds)
            act = kinds.pop()
            is_quiet = number % 4 == 3
            if is_quiet:
                self.gate.clear()
                await until(lambda: self.num_open == 0)
                await self.call(Engine.check_invariants)
                await self._check_against_the_pool(act)
                self.gate.set()
            else:
                await act()
            self.done[act.__name__] += 1
            await self.call(Engine.check_invariants)
            await self.call(self._check_lookups)
            assert self.cache.ledger.faults == []

    def _due(self, number: int) -> int:
        return min((number + 1) * NUM_REQUESTS // NUM_SELECTORS, NUM_REQUESTS) - 5

    async def call(self, function: Callable[[Engine], Any]) -> Any:
        return await self.rig.planes.engine.call(function)

    async def _pass_time(self, seconds: float) -> None:
        await self.call(lambda _: self.clock.advance(seconds))

    def _check_lookups(self, engine: Engine) -> None:
        """Ask for a few prompts once more, as if each domain sent them now."""
        asked = list(self.cache.ledger.hits)
        for domain, data in self.dice.sample(asked, min(20, len(asked))):
            tokens = np.frombuffer(data, dtype=TOKEN_DTYPE)
            lease = self.cache.acquire(engine.parts.fingerprint, domain, tokens)
            self.cache.release(lease, tokens, lease.num_published_tokens)

    async def _check_against_the_pool(self, act: Callable[[], Awaitable[None]]) -> None:
        """Act while nobody is served: what was dropped is what came free."""

        def held(engine: Engine) -> int:
            engine.cache.room.sweep()
            counts = engine.cache.counts
            assert counts.private == 0
            return counts.shared + counts.idle

        before = await self.call(held)
        self.last: dict[str, Any] = {}
        await act()
        lost = before - await self.call(held)
        if not self.last:
            return
        assert self.last["leased_blocks"] == 0
        dropped, is_most = self.last["dropped_blocks"], self.last["is_upper_bound"]
        if act in (self._approval, self._withdraw) or is_most:
            assert lost <= dropped
        else:
            # What only an approval had let others find may stay, as somebody's own hangs
            # below; what only a withdrawn one had kept may come free with it.
            assert lost >= dropped - self.cache.ledger.num_closed
            self.done["counted in the pool"] += lost == dropped > 0

    async def _admin(self, path: str, **body: Any) -> Any:
        return await request(
            self.rig.planes.admin, "POST", path, body,
            headers={"authorization": self.rig.token.authorization},
        )  # fmt: skip

    async def _invalidate(self, **body: Any) -> None:
        answer = await self._admin("/cache/invalidate", **body)
        assert answer.status == 200, answer.body
        self.last = answer.json

    async def _approve(self) -> None:
        dice = self.dice
        self.approvals = self.approvals[-6:]
        if len(self.approvals) > 4:
            return
        terms: list[dict[str, Any]] = [{}, {"pinned": True}, {"ttl_s": 5.0}, {"ttl_s": 9.0}]
        answer = await self._admin(
            "/cache/approve",
            prompt=dice.choice(self.families)[: dice.randrange(BLOCK_SIZE, 80)],
            domain=dice.choice(["public", "acme", "acme/search", "blue", "other"]),
            label=f"label {dice.random()}",
            **dice.choice(terms),
        )
        if answer.status == 200:
            self.approvals.append(answer.json["id"])
        else:
            assert answer.status in (409, 429, 503), answer.body
        self.done[f"approved: {answer.status}"] += 1

    async def _everything(self) -> None:
        await self._invalidate(everything=True)

    async def _field(self) -> None:
        name = self.dice.choice(
            ["weights", "tokenizer", "position_config", "layout_version"]
        )
        await self._invalidate(field=name, value="current")

    async def _unknown_field(self) -> None:
        await self._invalidate(field="weights", value=NEVER_SERVED.hex())
        assert (self.last["dropped_blocks"], self.last["ended_approvals"]) == (0, 0)

    async def _approval(self) -> None:
        wanted = self._take_approval()
        await self._invalidate(approval=wanted)

    async def _withdraw(self) -> None:
        answer = await self._admin("/cache/withdraw", id=self._take_approval())
        assert answer.status in (200, 404), answer.body
        self.last = answer.json if answer.status == 200 else {}

    def _take_approval(self) -> str:
        if not self.approvals:
            return "approval-of-nothing"
        return self.approvals.pop(self.dice.randrange(len(self.approvals)))

    async def _prompt(self) -> None:
        tenant = self.dice.choice(TENANTS)
        await self._invalidate(prompt=self._prefix(), domain=tenant.domain)

    async def _prompt_of_all(self) -> None:
        await self._invalidate(prompt=self._prefix())

    def _prefix(self) -> list[int]:
        return self.dice.choice(self.families)[: self.dice.randrange(BLOCK_SIZE, 70)]

    async def _age(self) -> None:
        await self._invalidate(older_than_s=self.dice.choice([0.0, 1.0, 3.0, 8.0]))

    async def _domain(self) -> None:
        await self._invalidate(domain=self._some_domain())

    async def _only_domain(self) -> None:
        await self._invalidate(domain=self._some_domain(), below=False)

    def _some_domain(self) -> str:
        return self.dice.choice(["public", "acme", "acme/search", "blue", "blue/sky"])

    async def _abort(self) -> None:
        await self._revoke("abort")

    async def _drain(self) -> None:
        await self._revoke("drain")

    async def _revoke(self, way: str) -> None:
        if self.leaving and self.dice.random() < 0.4:
            path = self.leaving.pop()
        else:
            path = f"{self.dice.choice(TENANTS[:8]).domain}/t{self.num_temporary}"
            self.num_temporary += 1
        self.cache.revokes = Domain(path)
        # Who is refused meanwhile is refused with reason.
        self.revoked.append(Domain(path))
        async with self.rig.admin() as admin:
            answer = await admin.delete(f"/domains/{path}", params={"requests": way})
        assert answer.status_code == 200, answer.text
        self.last = answer.json()
        self.done["ended by it"] += self.last["aborted_requests"]
        self.done["drained"] += self.last["draining_requests"]


def read_answer(
    answer: Answer, n: int, *, is_streamed: bool
) -> tuple[list[str], dict[str, Any] | None]:
    """Return texts and usage; no usage of a stream that was broken off."""
    if not is_streamed:
        choices = answer.json["choices"]
        return [choice["text"] for choice in choices], answer.json["usage"]
    texts, usage = [""] * n, None
    for event in answer.events:
        if event == "[DONE]":
            break
        if "error" in event:
            return texts, None
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
        usage = event.get("usage") or usage
    return texts, usage


@pytest.mark.parametrize("num_blocks", [SMALL, 1024], ids=["evicting", "roomy"])
@pytest.mark.parametrize("seed", range(1 if IS_SOAK else 2))
def test_nothing_that_a_receipt_covers_is_found_again(
    tmp_path: Path, seed: int, num_blocks: int
) -> None:
    async def main() -> None:
        clock = SettableClock(1000.0)
        cache = LedgerCache(num_blocks=num_blocks, block_size=BLOCK_SIZE, clock=clock)
        settings = RigSettings(
            directory=tmp_path,
            tenants=TENANTS,
            server=ServerConfig(max_queued=64),
            scheduler=SchedulerConfig(max_step_tokens=32, max_running=8, max_queued=64),
            num_blocks=num_blocks,
            max_model_len=512,
            cache=cache,
        )
        async with open_rig(settings) as rig:
            load = Load(rig, cache, clock, seed)
            async with asyncio.TaskGroup() as group:
                group.create_task(load.operator())
                for _ in range(NUM_CLIENTS):
                    group.create_task(load.client())
            await check_end(load)
            if num_blocks == SMALL:
                assert cache.snapshot().num_evictions > 0
                assert rig.engine.counters.num_preemptions > 0
            elif IS_SOAK:
                # Only few are: after everything went, until the next approval ended.
                # Among 20 selectors there may be none.
                assert cache.ledger.counts["exact receipts"] > 0
            counts = cache.ledger.counts
            assert min(counts[it] for it in ("hits", "copies", "doomed", "approvals")) > 0

    asyncio.run(asyncio.wait_for(main(), 600 if IS_SOAK else 120))


async def check_end(load: Load) -> None:
    """Nothing is open, nothing is held but pins, and in the end not even they are."""
    await until(lambda: load.rig.engine.num_open == 0)
    await load.call(check_idle)
    assert load.cache.ledger.faults == []
    assert sum(load.statuses.values()) == NUM_REQUESTS
    assert load.statuses[200] > NUM_REQUESTS // 3
    await load._everything()

    def is_empty(engine: Engine) -> None:
        engine.cache.room.sweep()
        counts = engine.cache.counts
        assert (counts.private, counts.shared, counts.idle) == (0, 0, 0)
        assert counts.free == engine.cache.num_blocks
        assert engine.cache.snapshot().num_leases == 0
        assert engine.cache.approved.num_pinned_blocks == 0

    await load.call(is_empty)
    limits = load.rig.limits
    limits.check_invariants()
    for tenant in load.rig.keys:
        assert limits.num_open(tenant) == limits.num_waiting(tenant) == 0
