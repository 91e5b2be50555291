"""The public plane over a real engine on its thread, whose runner has no weights."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import FastAPI
from transformers import PreTrainedTokenizerBase

from prefold.blocks.table import BlockCopy
from prefold.cache import PrefixCache
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.config import EngineConfig, ModelLimits, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.parts import EngineParts
from prefold.engine.request import RequestOutput
from prefold.engine.sampler import Sampler
from prefold.identity.fingerprint import Fingerprint
from prefold.server.config import ServerConfig, TenantConfig
from prefold.server.credentials import Authenticator
from prefold.server.keys import KeyFile
from prefold.server.limits import TenantLimits
from prefold.server.observer import AskedPrompt, ExchangeId, Plane
from prefold.server.permits import Permits
from prefold.server.public import make_public_app
from prefold.server.served_model import ServedModel
from support.asgi_call import Answer, AsgiCall, request
from support.fingerprints import make_fingerprint
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import VOCAB_SIZE, make_tokenizer

BLOCK_SIZE = 16
MODEL = "chain"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class PlaneRunner:
    """Stores tokens as their own KV; each logit depends on every token before it.

    Attributes:
        is_open: While it is cleared, steps wait.
        fails: Whether steps fail.
        num_steps: How many have begun to be computed.
    """

    def __init__(self, num_blocks: int) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.fails = False
        self.num_steps = 0
        tokenizer = make_tokenizer()
        self._letters = [tokenizer.get_vocab()[letter] for letter in "abcdefghijklmno"]
        self._tokens = np.zeros((num_blocks, BLOCK_SIZE), dtype=np.int64)

    def execute(self, plan: StepPlan) -> torch.Tensor:
        assert self.is_open.wait(60)
        self.num_steps += 1
        if self.fails:
            raise RuntimeError("the device caught fire")
        self.copy_blocks(plan.copies)
        rows = [row for piece in plan.slices for row in self._compute(piece)]
        return torch.stack(rows) if rows else torch.empty(0, VOCAB_SIZE)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            source, end = self._tokens[copy.source], copy.num_tokens
            self._tokens[copy.target, :end] = source[:end]

    def _compute(self, piece: SequenceSlice) -> list[torch.Tensor]:
        places = np.arange(piece.start, piece.end)
        blocks = piece.block_ids[places // BLOCK_SIZE]
        self._tokens[blocks, places % BLOCK_SIZE] = piece.token_ids
        known = self._tokens[piece.block_ids].reshape(-1)[: piece.end]
        sums = np.cumsum(known * (np.arange(piece.end) % 97 + 1))
        return [self._row(int(total)) for total in sums[piece.end - piece.num_logits :]]

    def _row(self, digest: int) -> torch.Tensor:
        row = torch.from_numpy(
            np.random.default_rng(digest).normal(size=VOCAB_SIZE).astype(np.float32)
        )
        row[self._letters[digest % len(self._letters)]] += 8.0
        return row


@dataclass
class Watcher:
    """An observer that remembers."""

    responses: list[tuple[Plane, str | None, int]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    outputs: list[tuple[str, RequestOutput]] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)

    def on_response(self, plane: Plane, route: str | None, status: int) -> None:
        self.responses.append((plane, route, status))

    def on_refused(self, tenant: str) -> None:
        self.refused.append(tenant)

    def on_asked(self, request: ExchangeId, prompts: Sequence[AskedPrompt]) -> None:
        self.asked.append((request.text, len(prompts)))

    def on_output(self, request: ExchangeId, output: RequestOutput, *, prompt: int) -> None:
        self.outputs.append((request.text, output))
        self.prompts.append(prompt)


@dataclass
class PublicPlane:
    """Everything a test looks at."""

    app: FastAPI
    engine: AsyncEngine
    limits: TenantLimits
    watcher: Watcher
    tokenizer: PreTrainedTokenizerBase

    async def post(self, path: str, body: object, **more: Any) -> Answer:
        return await request(self.app, "POST", path, body, **more)

    async def get(self, path: str, **more: Any) -> Answer:
        return await request(self.app, "GET", path, **more)

    async def ask(self, method: str, path: str, **more: Any) -> Answer:
        """Send a request without a body."""
        return await request(self.app, method, path, **more)

    async def complete(self, prompt: object, **fields: Any) -> Any:
        """Return a completion that must succeed."""
        answer = await self.post(TEXT, text_body(prompt, **fields))
        assert answer.status == 200, answer.body
        return answer.json

    async def chat(self, content: str, **fields: Any) -> Any:
        """Return a reply that must succeed."""
        answer = await self.post(CHAT, chat_body(content, **fields))
        assert answer.status == 200, answer.body
        return answer.json

    async def assert_nothing_is_held(self, tenant: str = "default") -> None:
        """Wait until nothing is open, and check that no block is held."""

        def state(engine: Engine) -> tuple[int, int, int]:
            engine.check_invariants()
            counts = engine.cache.counts
            return engine.num_open, counts.private, counts.shared

        for _ in range(2000):
            is_idle = await self.engine.call(state) == (0, 0, 0)
            if is_idle and not self.limits.num_open(tenant):
                self.limits.check_invariants()
                return
            await asyncio.sleep(0.005)
        pytest.fail("requests, blocks or tickets are still held")


@dataclass
class ChainPlane(PublicPlane):
    """A plane whose runner has no weights."""

    runner: PlaneRunner


def text_body(prompt: object, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}


def chat_body(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, **fields}


def cached_tokens(reply: Any) -> int:
    found = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(found, int)
    return found


def make_authenticator(path: Path) -> tuple[Authenticator, dict[str, str]]:
    """Return one for two tenants, and their keys."""
    key_file = KeyFile(path)
    tenants = [TenantConfig(name="acme", max_concurrent=3), TenantConfig(name="globex")]
    keys = {tenant.name: key_file.create(tenant.name).text for tenant in tenants}
    return Authenticator(tenants, key_file), keys


@asynccontextmanager
async def open_plane(
    core: Engine,
    tokenizer: PreTrainedTokenizerBase,
    fingerprint: Fingerprint,
    *,
    config: ServerConfig | None = None,
    authenticator: Authenticator | None = None,
) -> AsyncIterator[PublicPlane]:
    """Yield a plane over an engine, and stop it in the end."""
    engine = AsyncEngine(core)
    config = config or ServerConfig()
    limits = TenantLimits(max_queued=config.max_queued)
    watcher = Watcher()
    model = ServedModel(
        name=MODEL,
        created=1_700_000_000,
        tokenizer=tokenizer,
        limits=core.config.limits,
        fingerprint=fingerprint,
    )
    app = make_public_app(
        engine, model, Permits(authenticator or Authenticator()), limits, config, watcher
    )
    await engine.start()
    try:
        yield PublicPlane(app, engine, limits, watcher, tokenizer)
    finally:
        await engine.stop(drain_s=0.0)


@asynccontextmanager
async def public_plane(
    *,
    config: ServerConfig | None = None,
    authenticator: Authenticator | None = None,
    num_blocks: int = 512,
    max_model_len: int = 2048,
    scheduler: SchedulerConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
) -> AsyncIterator[ChainPlane]:
    """Yield a plane over a model of no weights, and stop its engine in the end."""
    tokenizer = tokenizer or make_tokenizer()
    tokenizer.chat_template = chat_template
    runner = PlaneRunner(num_blocks)
    fingerprint = make_fingerprint(block_size=BLOCK_SIZE)
    core = Engine(
        EngineParts(
            cache=PrefixCache(
                num_blocks=num_blocks, block_size=BLOCK_SIZE, clock=time.monotonic
            ),
            runner=runner,
            sampler=Sampler(VOCAB_SIZE),
            fingerprint=fingerprint,
            tokenizer=tokenizer,
        ),
        EngineConfig(
            limits=ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=max_model_len),
            scheduler=scheduler or SchedulerConfig(),
        ),
    )
    async with open_plane(
        core, tokenizer, fingerprint, config=config, authenticator=authenticator
    ) as plane:
        try:
            yield ChainPlane(
                plane.app,
                plane.engine,
                plane.limits,
                plane.watcher,
                plane.tokenizer,
                runner,
            )
        finally:
            runner.is_open.set()


async def let_steps_pass(plane: ChainPlane, condition: Callable[[], bool]) -> None:
    """Let steps run, one or a few at a time, until something has happened."""
    for _ in range(1000):
        if condition():
            return
        before = plane.runner.num_steps
        plane.runner.is_open.set()
        await until(lambda: plane.runner.num_steps > before)  # noqa: B023 -- waited for here
        plane.runner.is_open.clear()
        # The loop's turn.
        for _ in range(20):
            await asyncio.sleep(0.001)
    pytest.fail("steps passed, and what was waited for did not happen")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is bound to happen soon."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("what was waited for did not happen")


def start(plane: PublicPlane, path: str, body: dict[str, Any]) -> AsgiCall:
    """Send a request and leave the rest to the test."""
    call = AsgiCall(plane.app, "POST", path, {"content-type": "application/json"})
    return call.feed(json.dumps(body).encode()).start()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run one test's coroutine; one that hangs fails."""
    asyncio.run(asyncio.wait_for(test(), 120))
