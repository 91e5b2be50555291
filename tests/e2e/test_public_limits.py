"""The public plane under load and in trouble: limits, failures, clients that leave."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from prefold.engine.config import SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.request import FinishReason
from prefold.errors import EngineStoppedError, InvariantError
from prefold.server.config import ServerConfig, TenantConfig
from prefold.server.credentials import Authenticator
from prefold.server.keys import KeyFile
from prefold.server.observer import Plane
from support.asgi_call import Answer, AsgiCall
from support.public_plane import (
    CHAT,
    TEXT,
    PublicPlane,
    chat_body,
    let_steps_pass,
    make_authenticator,
    public_plane,
    run,
    start,
    text_body,
    until,
)

pytestmark = pytest.mark.e2e


PROMPT = "the long beginning that all of these prompts have in common, and more of it. "


# -- limits --------------------------------------------------------------------------------


def test_a_tenant_at_its_limit_is_told_to_wait(tmp_path: Path) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            key = keys["acme"]
            plane.runner.is_open.clear()
            open_ones = [
                asyncio.create_task(plane.post(TEXT, text_body("x"), key=key))
                for _ in range(3)
            ]
            await until(lambda: plane.limits.num_open("acme") >= 3)
            answer = await plane.post(TEXT, text_body("x"), key=key)
            assert answer.status == 429
            assert answer.message
            assert int(answer.headers["retry-after"]) >= 1
            # Others are served, and several prompts are several requests.
            other = asyncio.create_task(
                plane.post(TEXT, text_body("x"), key=keys["globex"])
            )
            await until(lambda: plane.limits.num_open("globex") >= 1)
            plane.runner.is_open.set()
            for task in [*open_ones, other]:
                assert (await task).status == 200
            answer = await plane.post(TEXT, text_body(["x"] * 4), key=key)
            assert answer.status == 400
            assert "fewer prompts" in answer.message
            # So is each of several replies.
            answer = await plane.post(TEXT, text_body("x", n=4), key=key)
            assert answer.status == 400
            assert "lower n" in answer.message
            answer = await plane.post(TEXT, text_body(["x"] * 3), key=key)
            assert answer.status == 200
            await plane.assert_nothing_is_held("acme")
            assert plane.watcher.refused == ["acme", "acme", "acme"]

    run(test)


def test_tokens_a_minute_are_those_that_were_really_used(tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.create("acme").text
    authenticator = Authenticator(
        [TenantConfig(name="acme", tokens_per_minute=1000)], key_file
    )

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            letters = plane.tokenizer.encode("abcdefghijklmno")
            body = text_body("x", max_tokens=600, stop_token_ids=letters)
            # Each may come to 601 tokens, and comes to 2.
            for _ in range(5):
                answer = await plane.post(TEXT, body, key=key)
                assert answer.json["usage"]["total_tokens"] == 2
            answer = await plane.post(TEXT, text_body("x" * 900, max_tokens=50), key=key)
            assert answer.status == 200
            answer = await plane.post(TEXT, text_body("x" * 900, max_tokens=50), key=key)
            assert answer.status == 429
            assert "lower max_tokens" in answer.message

    run(test)


def test_a_reply_of_no_stated_length_is_not_charged_the_whole_context(
    tmp_path: Path,
) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.create("acme").text
    tenant = TenantConfig(name="acme", tokens_per_minute=1500)
    authenticator = Authenticator([tenant], key_file)

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            letters = plane.tokenizer.encode("abcdefghijklmno")
            for _ in range(3):
                body = chat_body("x", stop_token_ids=letters)
                answer = await plane.post(CHAT, body, key=key)
                assert answer.status == 200, answer.body
                assert answer.json["usage"]["completion_tokens"] == 1

    run(test)


def test_prompt_and_reply_are_charged_as_long_as_they_were(tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.create("acme").text
    tenant = TenantConfig(name="acme", tokens_per_minute=1000)
    authenticator = Authenticator([tenant], key_file)

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            for prompt, max_tokens in (("x", 400), ("x" * 400, 1)):
                body = text_body(prompt, max_tokens=max_tokens)
                assert (await plane.post(TEXT, body, key=key)).status == 200
            # Some 198 are left.
            answer = await plane.post(TEXT, text_body("x", max_tokens=300), key=key)
            assert answer.status == 429
            answer = await plane.post(TEXT, text_body("x", max_tokens=150), key=key)
            assert answer.status == 200

    run(test)


def test_a_request_waits_until_its_first_token() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            plane.runner.is_open.clear()
            call = start(plane, TEXT, text_body("x", max_tokens=1500, stream=True))
            await until(lambda: plane.limits.num_waiting("default") == 1)
            plane.runner.is_open.set()
            for _ in range(3):
                assert await call.next_message() is not None
            assert plane.limits.num_open("default") == 1
            assert plane.limits.num_waiting("default") == 0
            call.disconnect()
            await call.wait()
            await plane.assert_nothing_is_held()

    run(test)


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize"])
def test_a_call_too_many_is_refused_before_its_body_is_read(
    path: str, tmp_path: Path
) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")

    async def test() -> None:
        async with public_plane(authenticator=authenticator) as plane:
            headers = {
                "authorization": f"Bearer {keys['acme']}",
                "content-type": "application/json",
            }
            # Three are open, though none of them has sent all of its body.
            calls = [
                AsgiCall(plane.app, "POST", path, headers).feed(b"{", is_last=False).start()
                for _ in range(3)
            ]
            await until(lambda: plane.limits.num_open("acme") == 3)
            late = AsgiCall(plane.app, "POST", path, headers).start()
            answer = await late.answer()
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            for call in calls:
                call.disconnect()
                await call.wait()
            await plane.assert_nothing_is_held("acme")
            assert (await plane.get("/v1/models", key=keys["acme"])).status == 200

    run(test)


def test_an_answer_that_nobody_reads_stays_an_open_call() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            call = start(plane, TEXT, text_body("x", max_tokens=20, stream=True))
            call.is_read.clear()
            await until(lambda: len(plane.watcher.outputs) == 1)
            # The engine is done with it, and its queue has room again.
            assert plane.engine.engine.num_open == 0
            assert plane.limits.num_waiting("default") == 0
            assert plane.limits.num_open("default") == 1
            call.is_read.set()
            assert (await finish(call)).endswith(b"data: [DONE]\n\n")
            await call.wait()
            await plane.assert_nothing_is_held()

    run(test)


def test_every_choice_waits_for_its_own_first_token() -> None:
    async def test() -> None:
        async with public_plane(scheduler=SchedulerConfig(max_running=1)) as plane:
            plane.runner.is_open.clear()
            body = text_body(["x", "y"], n=2, max_tokens=30, stream=True)
            call = start(plane, TEXT, body)
            await until(lambda: plane.limits.num_waiting("default") == 4)
            plane.runner.is_open.set()
            seen = {4}
            while (await call.next_message()) is not None:
                seen.add(plane.limits.num_waiting("default"))
            await call.wait()
            assert len(seen) > 2
            await plane.assert_nothing_is_held()

    run(test)


def test_a_share_of_the_queue_counts_replies(tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.create("acme").text
    tenant = TenantConfig(name="acme", queue_share=0.5)
    authenticator = Authenticator([tenant], key_file)

    async def test() -> None:
        config = ServerConfig(max_queued=16)
        async with public_plane(authenticator=authenticator, config=config) as plane:
            plane.runner.is_open.clear()
            body = text_body("x", n=8, max_tokens=2)
            first = asyncio.create_task(plane.post(TEXT, body, key=key))
            await until(lambda: plane.limits.num_waiting("acme") == 8)
            answer = await plane.post(TEXT, text_body("x"), key=key)
            assert answer.status == 429
            assert "8 replies are waiting" in answer.message
            answer = await plane.post(TEXT, text_body(["x", "y"], n=8), key=key)
            assert answer.status == 400
            plane.runner.is_open.set()
            assert (await first).status == 200
            await plane.assert_nothing_is_held("acme")

    run(test)


def test_a_full_queue_is_a_503_with_a_time_to_wait() -> None:
    scheduler = SchedulerConfig(max_running=1, max_queued=2)

    async def test() -> None:
        async with public_plane(scheduler=scheduler) as plane:
            plane.runner.is_open.clear()
            tasks = [
                asyncio.create_task(plane.post(TEXT, text_body(f"{i} {PROMPT}")))
                for i in range(8)
            ]
            done: set[asyncio.Task[Answer]] = set()
            while not done:
                await asyncio.sleep(0.01)
                done = {task for task in tasks if task.done()}
                if not done and plane.limits.num_open("default") == 8:
                    plane.runner.is_open.set()
            plane.runner.is_open.set()
            answers = [await task for task in tasks]
            statuses = [answer.status for answer in answers]
            assert set(statuses) == {200, 503}
            for answer in answers:
                if answer.status == 503:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.message
            await plane.assert_nothing_is_held()

    run(test)


def test_of_several_prompts_all_are_taken_or_none() -> None:
    scheduler = SchedulerConfig(max_running=1, max_queued=4)

    async def test() -> None:
        async with public_plane(scheduler=scheduler) as plane:
            engine = plane.engine.engine
            plane.runner.is_open.clear()
            running = asyncio.create_task(plane.post(TEXT, text_body("x", max_tokens=3)))
            await until(lambda: engine.counters.num_admissions == 1)
            # One of them could wait, and three more, but not five in all.
            body = text_body(["a", "b", "c"], max_tokens=3)
            first = asyncio.create_task(plane.post(TEXT, body))
            second = asyncio.create_task(plane.post(TEXT, body))
            await asyncio.sleep(0.05)
            plane.runner.is_open.set()
            answers = [await first, await second]
            assert sorted(answer.status for answer in answers) == [200, 503]
            assert (await running).status == 200
            await plane.assert_nothing_is_held()
            assert plane.watcher.refused == ["default"]
            # Nothing of what was refused was ever taken in.
            assert engine.counters.num_admissions == 4

    run(test)


@pytest.mark.parametrize("fields", [{"prompt": ["a", "b", "c"]}, {"n": 3}])
def test_what_can_never_wait_together_is_a_400(fields: dict[str, object]) -> None:
    scheduler = SchedulerConfig(max_running=1, max_queued=2)

    async def test() -> None:
        async with public_plane(scheduler=scheduler) as plane:
            answer = await plane.post(TEXT, {**text_body("x"), **fields})
            assert answer.status == 400
            assert "max_queued" in answer.message
            assert plane.engine.engine.counters.num_admissions == 0

    run(test)


def test_a_request_that_takes_too_long_is_ended() -> None:
    async def test() -> None:
        async with public_plane(config=ServerConfig(request_timeout_s=0.1)) as plane:
            plane.runner.is_open.clear()
            asyncio.get_running_loop().call_later(0.3, plane.runner.is_open.set)
            answer = await plane.post(TEXT, text_body("x", max_tokens=2000))
            assert answer.status == 503
            assert answer.json["error"]["code"] == "timeout"
            answer = await plane.post(TEXT, text_body("x", max_tokens=2000, stream=True))
            assert answer.events[-1]["error"]["code"] == "timeout"
            await plane.assert_nothing_is_held()

    run(test)


# -- trouble -------------------------------------------------------------------------------


def test_a_step_that_fails_is_an_error_and_the_next_request_works() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            plane.runner.fails = True
            for body in (text_body("x"), text_body("x", stream=True)):
                answer = await plane.post(TEXT, body)
                assert answer.status == 500
                assert "fire" not in answer.message
                assert "RuntimeError" in answer.message
            plane.runner.fails = False
            await plane.complete("x")
            await plane.assert_nothing_is_held()

    run(test)


def test_an_error_after_the_first_piece_is_the_last_event() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            call = start(plane, TEXT, text_body("x", max_tokens=2000, stream=True))
            for _ in range(4):
                assert await call.next_message() is not None
            plane.runner.fails = True
            answer = await finish(call)
            *_, last = answer.decode().strip().split("\n\n")
            assert '"error"' in last
            assert "[DONE]" not in answer.decode()
            await plane.assert_nothing_is_held()

    run(test)


def test_a_server_that_stops_says_so() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            plane.runner.is_open.clear()
            waiting = asyncio.create_task(plane.post(TEXT, text_body("x", max_tokens=2000)))
            await until(lambda: plane.limits.num_open("default") >= 1)
            stopping = asyncio.create_task(plane.engine.stop(drain_s=0.0))
            await asyncio.sleep(0.01)
            plane.runner.is_open.set()
            await stopping
            answers = [
                await waiting,
                await plane.post(TEXT, text_body("x")),
                await plane.post(CHAT, chat_body("x")),
                await plane.get("/health"),
            ]
            for answer in answers:
                assert answer.status == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert "shutting down" in answer.message

    run(test)


async def finish(call: AsgiCall) -> bytes:
    """Return the rest of an answer's body."""
    rest = b""
    while (message := await call.next_message()) is not None:
        rest += message.get("body", b"")
    return rest


async def reach(
    plane: PublicPlane, call: AsgiCall, moment: str, *, is_streamed: bool
) -> None:
    """Wait until a request is where its client is to leave."""
    counters = plane.engine.engine.counters
    if moment == "queued":
        await until(lambda: plane.limits.num_waiting("default") == 1)
    elif moment == "prefilling":
        await until(lambda: counters.num_steps > 0)
    elif is_streamed:
        for _ in range(5):
            await call.next_message()
    else:
        await until(lambda: counters.num_sampled_tokens > 5)


@pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("moment", ["queued", "prefilling", "streaming"])
def test_a_client_that_leaves_ends_its_request(
    moment: str, path: str, *, is_streamed: bool
) -> None:
    scheduler = SchedulerConfig(max_running=1, max_step_tokens=16)
    fields = {"max_tokens": 1500, "stream": is_streamed}
    body = (text_body if path == TEXT else chat_body)(PROMPT * 3, **fields)

    async def test() -> None:
        async with public_plane(scheduler=scheduler) as plane:
            core = plane.engine.engine
            calls = []
            if moment == "queued":
                calls.append(start(plane, TEXT, text_body("block", max_tokens=1500)))
                await until(lambda: core.counters.num_sampled_tokens > 2)
            calls.append(start(plane, path, body))
            await reach(plane, calls[-1], moment, is_streamed=is_streamed)
            for call in reversed(calls):
                call.disconnect()
                await call.wait()
            await plane.assert_nothing_is_held()
            # Far fewer than were asked for: the engine did not go on by itself.
            assert core.counters.num_sampled_tokens < 1400
            assert len(plane.watcher.outputs) == len(calls)
            assert all(
                output.finish_reason is FinishReason.ABORTED
                for _, output in plane.watcher.outputs
            )
            if not is_streamed:
                assert (Plane.PUBLIC, path, 499) in plane.watcher.responses
            # What was computed stays, and is right.
            reply = await plane.complete(PROMPT * 3, max_tokens=3)
            off = await plane.complete(
                PROMPT * 3, max_tokens=3, cache={"read": False, "write": False}
            )
            assert reply["choices"] == off["choices"]

    run(test)


@pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("moment", ["submitting", "queued", "streaming"])
def test_a_server_that_gives_a_request_up_ends_it(
    moment: str, *, is_streamed: bool
) -> None:
    async def test() -> None:
        async with public_plane() as plane:
            if moment != "streaming":
                plane.runner.is_open.clear()
            body = text_body(PROMPT, max_tokens=1500, stream=is_streamed)
            call = start(plane, TEXT, body)
            if moment == "submitting":
                await until(lambda: plane.limits.num_open("default") == 1)
            else:
                await reach(plane, call, moment, is_streamed=is_streamed)
            if moment == "queued":
                # Time enough to hear that the engine has taken it.
                await until(lambda: plane.engine.engine.num_open == 1)
                await asyncio.sleep(0.05)
            await call.cancel()
            plane.runner.is_open.set()
            await plane.assert_nothing_is_held()
            assert plane.engine.engine.counters.num_sampled_tokens < 1400

    run(test)


def test_every_output_is_noted_once_under_the_id_the_client_was_told() -> None:
    async def test() -> None:
        async with public_plane() as plane:
            answer = await plane.post(
                TEXT,
                text_body(["a", "b"], n=2, max_tokens=2),
                headers={"x-request-id": "mine"},
            )
            assert answer.headers["x-request-id"] == "mine"
            assert [name for name, _ in plane.watcher.outputs] == ["mine"] * 4
            assert plane.watcher.responses == [(Plane.PUBLIC, TEXT, 200)]
            assert plane.watcher.refused == []

    run(test)


def test_who_waited_in_vain_is_not_charged(tmp_path: Path) -> None:
    key_file = KeyFile(tmp_path / "keys.json")
    key = key_file.create("acme").text
    tenant = TenantConfig(name="acme", tokens_per_minute=1000)
    authenticator = Authenticator([tenant], key_file)

    async def test() -> None:
        scheduler = SchedulerConfig(max_running=1)
        async with public_plane(authenticator=authenticator, scheduler=scheduler) as plane:
            plane.runner.is_open.clear()
            long = text_body("x", max_tokens=60)
            blocking = asyncio.create_task(plane.post(TEXT, long, key=key))
            await until(lambda: plane.limits.num_waiting("acme") == 1)
            headers = {
                "authorization": f"Bearer {key}",
                "content-type": "application/json",
            }
            call = AsgiCall(plane.app, "POST", TEXT, headers)
            call.feed(json.dumps(text_body("y" * 900, max_tokens=1)).encode()).start()
            await until(lambda: plane.limits.num_waiting("acme") == 2)
            call.disconnect()
            # It is heard between steps, and must be before the first request has ended.
            await let_steps_pass(plane, lambda: plane.limits.num_waiting("acme") == 1)
            assert not blocking.done()
            plane.runner.is_open.set()
            await call.wait()
            assert (await blocking).status == 200
            await plane.assert_nothing_is_held("acme")
            answer = await plane.post(TEXT, text_body("z" * 900, max_tokens=1), key=key)
            assert answer.status == 200, answer.body

    run(test)


def test_a_server_that_broke_down_says_so() -> None:
    async def test() -> None:
        async with public_plane() as plane:

            def break_down(engine: Engine) -> None:
                del engine
                raise InvariantError("on purpose")

            with pytest.raises(EngineStoppedError):
                await plane.engine.call(break_down)
            await until(lambda: plane.engine.is_broken)
            for answer in [
                await plane.post(TEXT, text_body("x")),
                await plane.get("/health"),
            ]:
                assert answer.status == 503
                assert "has to be restarted" in answer.message
                assert int(answer.headers["retry-after"]) >= 1

    run(test)


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/v1/models"])
@pytest.mark.parametrize("end", ["\n", "\r", "\0"])
def test_a_path_with_a_line_break_is_no_route(path: str, end: str) -> None:
    async def test() -> None:
        async with public_plane() as plane:
            answer = await plane.post(path + end, text_body("x"))
            assert answer.status == 404
            assert answer.message
            assert plane.limits.num_open("default") == 0

    run(test)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("localhost@evil.example", 403),
        ("", 403),
        ("[::1", 403),
    ],
)
def test_without_keys_only_this_machine_s_names_are_answered(
    host: str, status: int, tmp_path: Path
) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")

    async def answer(plane: PublicPlane, path: str, key: str | None) -> Answer:
        headers = [(b"host", host.encode())]
        if key is not None:
            headers.append((b"authorization", f"Bearer {key}".encode()))
        call = AsgiCall(plane.app, "GET", path, headers)
        call.replace_host()
        return await call.feed(b"").start().answer()

    async def test() -> None:
        async with public_plane() as plane:
            for path in ("/v1/models", "/health"):
                found = await answer(plane, path, None)
                assert found.status == status
                assert status == 200 or "localhost" in found.message
        async with public_plane(authenticator=authenticator) as plane:
            # A key is what no web page has.
            assert (await answer(plane, "/v1/models", keys["acme"])).status == 200

    run(test)
