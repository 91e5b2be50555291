from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.request import FinishReason, SamplingParams
from prefold.engine.request_stream import RequestStream, StreamEvent
from prefold.errors import EngineStoppedError, InvariantError, RequestError
from support.sessions import ChainRunner, make_session

OPTIONS = RequestOptions()
PROMPT = list(range(3, 43))
LONG = SamplingParams(max_tokens=4000, ignore_eos=True)
SHORT = SamplingParams(max_tokens=5, ignore_eos=True)


@asynccontextmanager
async def running(
    num_blocks: int = 512,
) -> AsyncIterator[tuple[AsyncEngine, Engine, ChainRunner]]:
    session, runner = make_session(num_blocks=num_blocks)
    server = AsyncEngine(session.engine)
    await server.start()
    try:
        yield server, session.engine, runner
    finally:
        await server.stop(drain_s=0.0)


async def ensure_clean(server: AsyncEngine) -> None:
    """Wait until nothing is open, and check that nothing is held."""

    def state(engine: Engine) -> tuple[int, int, int]:
        engine.check_invariants()
        counts = engine.cache.counts
        return engine.num_open, counts.private, counts.shared

    for _ in range(2000):
        if await server.call(state) == (0, 0, 0):
            return
        await asyncio.sleep(0.005)
    pytest.fail("requests or blocks are still held")


def run(test: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_tokens_come_one_by_one_and_the_output_last() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            stream = await server.submit(PROMPT, SHORT, options=OPTIONS)
            events = [event async for event in stream.events()]
            tokens = [e.token.token_id for e in events if e.token is not None]
            assert events[-1].output is not None
            assert events[-1].output.token_ids == tuple(tokens)
            assert all(event.output is None for event in events[:-1])
            await ensure_clean(server)

    run(test)


def test_many_at_once_get_what_each_would_get_alone() -> None:
    async def test() -> None:
        session, _ = make_session()
        prompts = [PROMPT[: 7 + 3 * index] for index in range(9)]
        expected = [output.token_ids for output in session.engine.generate(prompts, SHORT)]
        async with running() as (server, _, _):

            async def ask(prompt: list[int]) -> tuple[int, ...]:
                stream = await server.submit(prompt, SHORT, options=OPTIONS)
                [output] = await stream.outputs()
                return output.token_ids

            assert await asyncio.gather(*map(ask, prompts)) == expected
            await ensure_clean(server)

    run(test)


def test_choices_are_told_apart_and_share_the_prompt() -> None:
    async def test() -> None:
        async with running() as (server, engine, _):
            params = SamplingParams(max_tokens=5, temperature=5.0, seed=1, ignore_eos=True)
            stream = await server.submit(PROMPT * 4, params, options=OPTIONS, n=3)
            outputs = await stream.outputs()
            assert len(outputs) == 3
            assert outputs[0].usage.cached_tokens == 0
            assert engine.counters.num_computed_tokens < 2 * len(PROMPT * 4)
            await ensure_clean(server)

    run(test)


def test_leaving_the_events_aborts() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            stream = await server.submit(PROMPT, LONG, options=OPTIONS)
            async for _ in stream.events():
                break
            await ensure_clean(server)

    run(test)


def test_a_reader_that_is_cancelled_aborts() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            stream = await server.submit(PROMPT, LONG, options=OPTIONS)
            reader = asyncio.ensure_future(stream.outputs())
            await asyncio.sleep(0.02)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await ensure_clean(server)

    run(test)


def test_whoever_leaves_while_submitting_leaves_nothing() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            for _ in range(20):
                asked = asyncio.ensure_future(server.submit(PROMPT, LONG, options=OPTIONS))
                await asyncio.sleep(0)
                asked.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asked
            await ensure_clean(server)

    run(test)


def test_abort_ends_every_choice() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            stream = await server.submit(PROMPT, LONG, options=OPTIONS, n=2)
            stream.abort()
            stream.abort()
            outputs = await stream.outputs()
            assert {o.finish_reason for o in outputs} == {FinishReason.ABORTED}
            await ensure_clean(server)

    run(test)


def test_bad_requests_are_refused_where_they_are_made() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            with pytest.raises(RequestError, match="empty"):
                await server.submit([], SHORT, options=OPTIONS)
            await ensure_clean(server)

    run(test)


def test_of_several_requests_none_is_begun_if_one_can_never_be_served() -> None:
    async def main() -> None:
        async with running(num_blocks=8) as (server, engine, _):
            jobs = [(PROMPT, SHORT), (list(range(3, 203)), SHORT)]
            with pytest.raises(RequestError, match="the cache memory holds"):
                await server.submit_together(jobs, options=OPTIONS)
            await ensure_clean(server)
            # Not even as one that was aborted.
            assert engine.counters.num_steps == 0
            assert engine.step() == []

    asyncio.run(main())


def test_stopping_drains_what_can_end_and_aborts_the_rest() -> None:
    async def test() -> None:
        session, _ = make_session(num_blocks=512)
        server = AsyncEngine(session.engine)
        await server.start()
        short = await server.submit(PROMPT, SHORT, options=OPTIONS)
        await server.stop(drain_s=5.0)
        [output] = await short.outputs()
        assert output.finish_reason is FinishReason.LENGTH
        assert not server.is_accepting
        assert not server.is_alive
        with pytest.raises(EngineStoppedError):
            await server.submit(PROMPT, SHORT, options=OPTIONS)
        with pytest.raises(EngineStoppedError):
            await server.call(lambda engine: engine.num_open)

    run(test)


def test_a_reader_of_what_was_cut_off_is_told() -> None:
    async def test() -> None:
        session, _ = make_session(num_blocks=512)
        server = AsyncEngine(session.engine)
        await server.start()
        stream = await server.submit(PROMPT, LONG, options=OPTIONS)
        await server.stop(drain_s=0.0)
        with pytest.raises(EngineStoppedError):
            await stream.outputs()
        counts = session.engine.cache.counts
        assert (counts.private, counts.shared) == (0, 0)

    run(test)


def test_a_bug_in_the_engine_leaves_nobody_waiting() -> None:
    async def test() -> None:
        async with running() as (server, _, _):
            stream = await server.submit(PROMPT, LONG, options=OPTIONS)

            def break_down(_: Engine) -> None:
                raise InvariantError("a bug")

            with pytest.raises(EngineStoppedError):
                await server.call(break_down)
            with pytest.raises(EngineStoppedError):
                await stream.outputs()
            assert not server.is_alive
            assert not server.is_accepting
            with pytest.raises(EngineStoppedError):
                await server.submit(PROMPT, SHORT, options=OPTIONS)

    run(test)


def test_a_failed_step_fails_its_requests_and_no_others() -> None:
    async def test() -> None:
        async with running() as (server, _, runner):
            runner.fails_at = 1
            stream = await server.submit(PROMPT, SHORT, options=OPTIONS)
            [output] = await stream.outputs()
            assert output.finish_reason is FinishReason.FAILED
            again = await server.submit(PROMPT, SHORT, options=OPTIONS)
            [output] = await again.outputs()
            assert output.finish_reason is FinishReason.LENGTH
            await ensure_clean(server)

    run(test)


def test_call_hands_back_results_and_errors() -> None:
    async def test() -> None:
        async with running() as (server, engine, _):
            assert await server.call(lambda each: each is engine)

            def fail(_: Engine) -> None:
                raise ValueError("as it is")

            with pytest.raises(ValueError, match="as it is"):
                await server.call(fail)
            assert server.is_alive

    run(test)


def test_an_event_shows_no_token() -> None:
    event = StreamEvent(index=0, token=None, output=None)
    assert "token" not in repr(event)
    assert isinstance(RequestStream([], lambda _: None), RequestStream)
