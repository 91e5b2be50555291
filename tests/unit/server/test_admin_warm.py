"""Warming ends when nobody waits for it any more, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from prefold.blocks.table import BlockCopy
from prefold.engine.batch import Runner, StepPlan
from prefold.engine.config import SchedulerConfig
from prefold.engine.engine import Engine
from prefold.server.config import ServerConfig
from support.asgi_call import AsgiCall
from support.planes_rig import Rig, RigSettings, assert_error, open_rig

PROMPT = list(range(200)) * 10
#: Of which 2000 tokens are 32 steps.
SCHEDULER = SchedulerConfig(max_running=4, max_step_tokens=64)


class SteppedRunner:
    """Waits before each step until the test lets it go on."""

    def __init__(self) -> None:
        self.may_step = threading.Semaphore(0)
        self.inner: Runner | None = None
        self.num_steps = 0

    def wrap(self, inner: Runner) -> Runner:
        self.inner = inner
        return self

    def execute(self, plan: StepPlan) -> torch.Tensor:
        assert self.may_step.acquire(timeout=60)
        self.num_steps += 1
        assert self.inner is not None
        return self.inner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        assert self.inner is not None
        self.inner.copy_blocks(copies)

    def release(self, num_steps: int) -> None:
        self.may_step.release(num_steps)


@asynccontextmanager
async def stepped_rig(
    directory: Path, *, timeout_s: float | None = None
) -> AsyncIterator[tuple[Rig, SteppedRunner]]:
    runner = SteppedRunner()
    settings = RigSettings(
        directory=directory,
        server=ServerConfig(request_timeout_s=timeout_s),
        scheduler=SCHEDULER,
        wrap_runner=runner.wrap,
    )
    async with open_rig(settings) as rig:
        try:
            yield rig, runner
        finally:
            runner.release(10_000)


def start_warming(rig: Rig, prompts: list[list[int]]) -> AsgiCall:
    body = json.dumps({"prompt": prompts}).encode()
    headers = {
        "authorization": rig.token.authorization,
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    return AsgiCall(rig.planes.admin, "POST", "/cache/warm", headers).feed(body).start()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():  # noqa: ASYNC110 -- of another thread
            await asyncio.sleep(0.005)


async def step_until_nothing_is_held(rig: Rig, runner: SteppedRunner) -> int:
    """Return how many steps it took after those so far."""

    def state(engine: Engine) -> tuple[int, int, int, int]:
        engine.check_invariants()
        counts = engine.cache.counts
        num_leases = engine.cache.snapshot().num_leases
        return engine.num_open, counts.private, counts.shared, num_leases

    before = runner.num_steps
    async with asyncio.timeout(30):
        is_idle = False
        while not is_idle:
            # One that is under way would keep the engine from answering.
            runner.release(1)
            is_idle = await rig.planes.engine.call(state) == (0, 0, 0, 0)
    return runner.num_steps - before


def run(test: Awaitable[None]) -> None:
    async def main() -> None:
        await test

    asyncio.run(main())


def test_it_ends_within_a_step_of_its_clients_leaving(tmp_path: Path) -> None:
    async def test() -> None:
        async with stepped_rig(tmp_path) as (rig, runner):
            warming = start_warming(rig, [PROMPT, PROMPT[1:]])
            runner.release(3)
            await until(lambda: runner.num_steps == 3)
            warming.disconnect()
            await warming.wait()
            # The step that was under way when the client left, and perhaps one more.
            assert await step_until_nothing_is_held(rig, runner) <= 2
            # What was computed by then is worth keeping.
            counts = await rig.planes.engine.call(lambda it: it.cache.counts)
            assert 0 < counts.idle < 20
            assert counts.idle + counts.free == 1024

    run(test())


def test_who_leaves_before_it_is_queued_starts_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with stepped_rig(tmp_path) as (rig, runner):
            warming = start_warming(rig, [PROMPT])
            warming.disconnect()
            await warming.wait()
            # Perhaps it was on its way to the engine, which then hears of both.
            assert await step_until_nothing_is_held(rig, runner) < 16

    run(test())


def test_it_ends_at_the_time_limit_and_says_when_to_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with stepped_rig(tmp_path, timeout_s=0.3) as (rig, runner):
            async with rig.admin() as admin:
                response = await admin.post("/cache/warm", json={"prompt": PROMPT})
            assert "longer than this server allows" in assert_error(response, 503)
            assert response.json()["error"]["code"] == "timeout"
            assert await step_until_nothing_is_held(rig, runner) < 16

    run(test())


def test_a_server_that_ends_meanwhile_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with stepped_rig(tmp_path) as (rig, runner):
            warming = start_warming(rig, [PROMPT])
            runner.release(1)
            await until(lambda: runner.num_steps == 1)
            stopping = asyncio.create_task(rig.planes.engine.stop(drain_s=0.0))
            runner.release(10_000)
            answer = await warming.answer()
            await stopping
            assert answer.status == 503
            assert answer.json["error"]["code"] == "shutting_down"

    run(test())


def test_with_time_enough_it_is_done(tmp_path: Path) -> None:
    async def test() -> None:
        async with stepped_rig(tmp_path, timeout_s=30.0) as (rig, runner):
            runner.release(10_000)
            async with rig.admin() as admin:
                response = await admin.post("/cache/warm", json={"prompt": PROMPT})
            [warmed] = response.json()["prompts"]
            assert warmed["hit_tokens"] >= len(PROMPT) - 16
            await step_until_nothing_is_held(rig, runner)

    run(test())


def test_while_it_drains_it_is_alive_and_not_ready(tmp_path: Path) -> None:
    async def test() -> None:
        async with stepped_rig(tmp_path) as (rig, runner), rig.admin() as admin:
            warming = start_warming(rig, [PROMPT])
            runner.release(1)
            await until(lambda: runner.num_steps == 1)
            stopping = asyncio.create_task(rig.planes.engine.stop(drain_s=60.0))
            await until(lambda: not rig.planes.engine.is_accepting)
            assert (await admin.get("/health")).json() == {"status": "draining"}
            assert_error(await admin.get("/health/ready"), 503)
            assert (await admin.get("/health/live")).json() == {"status": "alive"}
            runner.release(10_000)
            await stopping
            await warming.wait()

    run(test())
