from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import RequestOptions, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.prepared_model import PreparedModel
from prefold.engine.request import FinishReason, SamplingParams
from prefold.engine.request_stream import RequestStream
from prefold.errors import (
    ConfigError,
    EngineStoppedError,
    ModelChangedError,
    SwapUnderWayError,
)
from support.fake_engine import VOCAB_SIZE, FakeEngine, FakeRunner, expected_reply
from support.fingerprints import make_fingerprint

OPTIONS = RequestOptions()
SIZE = 4


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def draw(num_tokens: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(0, VOCAB_SIZE, num_tokens)]


def prepare(engine: Engine, weights: int) -> PreparedModel:
    runner = engine.parts.runner
    assert isinstance(runner, FakeRunner)
    fingerprint = make_fingerprint(block_size=SIZE, weights=weights.to_bytes(2, "big"))
    parts = replace(engine.parts, runner=runner.successor(weights), fingerprint=fingerprint)
    return PreparedModel(parts=parts, limits=engine.config.limits)


@asynccontextmanager
async def running() -> AsyncIterator[AsyncEngine]:
    engine = FakeEngine(
        num_blocks=64, scheduler=SchedulerConfig(max_running=4, max_step_tokens=16)
    )
    server = AsyncEngine(engine)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(drain_s=0.0)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def begin(server: AsyncEngine, prompt: list[int], max_tokens: int) -> RequestStream:
    """Return a request that has got its first token."""
    stream = await server.submit(prompt, greedy(max_tokens), options=OPTIONS)
    for _ in range(5000):
        if await server.call(lambda it: it.counters.num_sampled_tokens):
            return stream
        await asyncio.sleep(0.001)
    pytest.fail("no token came")


@pytest.mark.parametrize("drain", [True, False])
def test_every_reply_of_a_stream_of_requests_is_wholly_of_one_model(*, drain: bool) -> None:
    async def test() -> None:
        async with running() as server:
            base = draw(6 * SIZE, 1)
            versions = [0, *range(101, 107)]

            async def ask(number: int) -> tuple[list[int], list[int], bool]:
                await asyncio.sleep(number * 0.004)
                prompt = base[: 5 + number % 18] + draw(2, number)
                params = greedy(2 + number % 7)
                stream = await server.submit(prompt, params, options=OPTIONS)
                [output] = await stream.outputs()
                has_ended = output.finish_reason is FinishReason.LENGTH
                assert has_ended == (output.error is None)
                return prompt, list(output.token_ids), has_ended

            async def swap() -> None:
                for version in versions[1:]:
                    prepared = prepare(server.engine, version)
                    await server.swaps.swap(prepared, drain=drain, deadline_s=30)
                    await server.call(lambda it: it.check_invariants())
                    await asyncio.sleep(0.02)

            swapping = asyncio.ensure_future(swap())
            answers = await asyncio.gather(*map(ask, range(120)))
            await swapping
            for prompt, reply, has_ended in answers:
                assert has_ended or not drain
                assert any(
                    reply == expected_reply(prompt, len(reply), weights=version)
                    for version in versions
                )
            assert await server.call(lambda it: it.cache.counts.private) == 0

    run(test)


def test_tokens_go_on_coming_while_a_model_is_loaded() -> None:
    async def test() -> None:
        async with running() as server:
            may_end, begun = threading.Event(), threading.Event()

            def load() -> PreparedModel:
                begun.set()
                assert may_end.wait(30)
                return prepare(server.engine, 7)

            loading = asyncio.ensure_future(
                server.swaps.load(load, drain=True, deadline_s=30)
            )
            await asyncio.to_thread(begun.wait)
            prompt = draw(9, 1)
            for _ in range(3):
                stream = await server.submit(prompt, greedy(4), options=OPTIONS)
                [output] = await stream.outputs()
                assert list(output.token_ids) == expected_reply(prompt, 4)
            with pytest.raises(SwapUnderWayError):
                await server.swap_model("anything")
            assert not loading.done()
            may_end.set()
            assert (await loading).differing_fields == ("weights",)
            stream = await server.submit(prompt, greedy(4), options=OPTIONS)
            [output] = await stream.outputs()
            assert list(output.token_ids) == expected_reply(prompt, 4, weights=7)

    run(test)


def test_what_cannot_be_loaded_changes_nothing_and_the_next_one_can() -> None:
    async def test() -> None:
        async with running() as server:
            before = server.engine.parts
            with pytest.raises(ConfigError, match="did not come from"):
                await server.swap_model()
            with pytest.raises(ConfigError, match="tokenizer"):
                await server.reload_template("text")
            assert server.engine.parts is before
            prepared = prepare(server.engine, 7)
            receipt = await server.swaps.load(lambda: prepared, drain=True, deadline_s=1)
            assert receipt.fingerprint == server.engine.parts.fingerprint

    run(test)


def test_a_swap_that_nobody_waits_for_any_more_is_called_off() -> None:
    async def test() -> None:
        async with running() as server:
            prompt = draw(9, 1)
            stream = await begin(server, prompt, 100)
            prepared = prepare(server.engine, 7)
            swapping = asyncio.ensure_future(
                server.swaps.swap(prepared, drain=True, deadline_s=1e9)
            )
            for _ in range(5000):
                if server.engine.swapper.is_pending:
                    break
                await asyncio.sleep(0.001)
            swapping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await swapping
            assert not server.engine.swapper.is_pending
            [output] = await stream.outputs()
            assert list(output.token_ids) == expected_reply(prompt, 100)
            assert server.engine.parts.runner is not prepared.parts.runner

    run(test)


def test_an_engine_that_stops_does_not_let_a_swap_wait_for_ever() -> None:
    async def test() -> None:
        async with running() as server:
            await begin(server, draw(9, 1), 200)
            swapping = asyncio.ensure_future(
                server.swaps.swap(prepare(server.engine, 7), drain=True, deadline_s=1e9)
            )
            for _ in range(5000):
                if server.engine.swapper.is_pending:
                    break
                await asyncio.sleep(0)
            await server.stop(drain_s=0.0)
            with pytest.raises(EngineStoppedError):
                await swapping

    run(test)


def test_a_prompt_that_was_read_for_another_model_is_not_taken() -> None:
    async def test() -> None:
        async with running() as server:
            old = server.engine.parts.fingerprint
            jobs = [(draw(9, 1), greedy(2))]
            for stream in await server.submit_together(
                jobs, options=OPTIONS, fingerprint=old
            ):
                await stream.outputs()
            await server.swaps.swap(prepare(server.engine, 7), drain=True, deadline_s=1)
            with pytest.raises(ModelChangedError):
                await server.submit_together(jobs, options=OPTIONS, fingerprint=old)
            assert await server.call(lambda it: it.num_open) == 0

    run(test)


def test_there_is_no_gap_between_loading_and_beginning() -> None:
    async def test() -> None:
        async with running() as server:
            entered, may_go_on = threading.Event(), threading.Event()

            def block(engine: Engine) -> None:
                del engine
                entered.set()
                assert may_go_on.wait(30)

            blocking = asyncio.ensure_future(server.call(block))
            await until(entered.is_set)
            loaded = threading.Event()

            def load() -> PreparedModel:
                loaded.set()
                return prepare(server.engine, 101)

            swapping = asyncio.ensure_future(
                server.swaps.load(load, drain=False, deadline_s=0)
            )
            await until(lambda: loaded.is_set() and bool(server._commands))
            # It is loaded, and the engine has not had the time to begin.
            with pytest.raises(SwapUnderWayError):
                await server.swaps.load(load, drain=False, deadline_s=0)
            may_go_on.set()
            await blocking
            assert (await swapping).differing_fields == ("weights",)
            # Afterwards another one may come, and one that fails leaves nothing.
            with pytest.raises(ConfigError):
                await server.swaps.load(refuse, drain=False, deadline_s=0)
            receipt = await server.swaps.load(
                lambda: prepare(server.engine, 102), drain=False, deadline_s=0
            )
            assert receipt.differing_fields == ("weights",)

    run(test)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    pytest.fail("what was waited for did not happen")


def refuse() -> PreparedModel:
    raise ConfigError("on purpose")
