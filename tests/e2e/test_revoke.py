"""Revoking a domain: keys, requests in every stage, and what is cached."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prefold.engine.config import SchedulerConfig
from prefold.errors import ConfigError
from prefold.server.config import TenantConfig
from prefold.server.keys import KeyFile
from support.asgi_call import Answer, AsgiCall
from support.planes_rig import MODEL, Rig, RigSettings, assert_error, open_rig
from support.public_plane import PlaneRunner, until
from support.sharing import PROMPT, ask, check_idle, done, hit, post
from support.sharing import run as run_plain

pytestmark = pytest.mark.e2e


ACME = TenantConfig(name="acme")
SEARCH = TenantConfig(name="search", domain="acme/search")
BLUE = TenantConfig(name="blue")
TENANTS = (ACME, SEARCH, BLUE)


def run(
    check: Callable[[Rig, PlaneRunner], Awaitable[None]],
    directory: Path,
    *,
    num_blocks: int = 256,
) -> None:
    """Run a check against planes whose steps it can hold up."""

    async def main() -> None:
        runner = PlaneRunner(num_blocks)
        settings = RigSettings(
            directory=directory,
            tenants=TENANTS,
            scheduler=SchedulerConfig(max_running=4, max_step_tokens=64),
            num_blocks=num_blocks,
            wrap_runner=lambda _: runner,
        )
        async with open_rig(settings) as rig:
            try:
                await check(rig, runner)
            finally:
                runner.is_open.set()

    asyncio.run(asyncio.wait_for(main(), 60))


async def revoke(rig: Rig, path: str, query: str = "") -> dict[str, Any]:
    async with rig.admin() as admin:
        response = await admin.delete(f"/domains/{path}{query}")
    assert response.status_code == 200, response.text
    receipt: dict[str, Any] = response.json()
    return receipt


def call(rig: Rig, tenant: str) -> AsgiCall:
    """Begin a request of a tenant; its body is still to be fed."""
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {rig.keys[tenant]}",
    }
    return AsgiCall(rig.planes.public, "POST", "/v1/completions", headers)


def start(rig: Rig, tenant: str, prompt: list[int], **more: Any) -> AsgiCall:
    body = {"model": MODEL, "prompt": prompt, "ignore_eos": True, "temperature": 0, **more}
    return call(rig, tenant).feed(json.dumps(body).encode()).start()


async def begun(rig: Rig, num_open: int) -> None:
    await until(lambda: rig.engine.num_open == num_open)


async def settled(rig: Rig) -> dict[str, int]:
    """Wait until nothing is open; check all accounts and return the blocks."""
    await until(lambda: rig.engine.num_open == 0)
    return await rig.planes.engine.call(check_idle)


def assert_revoked(answer: Answer) -> None:
    """Assert that a call was ended, before its first token or in the middle of a stream."""
    is_stream = answer.status == 200
    assert is_stream or answer.status == 403
    error = (answer.events[-1] if is_stream else answer.json)["error"]
    assert error["code"] == "domain_revoked"
    assert "revoked while it was open" in error["message"]


# -- keys and what is cached ---------------------------------------------------------------


def test_keys_and_entries_of_a_domain_and_all_below_are_gone(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        for tenant in ("acme", "search", "blue"):
            assert (await ask(rig, tenant, PROMPT)).status_code == 200
        assert (await ask(rig, "acme", PROMPT, cache_salt="s")).status_code == 200
        narrow: dict[str, Any] = {"cache": {"domain": "acme/chat"}}
        assert (await ask(rig, "acme", PROMPT, **narrow)).status_code == 200
        for domain in ("acme", "public"):
            await done(rig, "/cache/approve", prompt=[5] * 32, domain=domain, label="a")
        before = rig.engine.cache.counts
        receipt = await revoke(rig, "acme")
        assert receipt.pop("num_invalidations") == 1
        dropped = receipt.pop("dropped_blocks")
        assert receipt == {
            "domain": "acme",
            "requests": "abort",
            "revoked_keys": 2,
            "aborted_requests": 0,
            "draining_requests": 0,
            "leased_blocks": 0,
            "is_upper_bound": False,
            "ended_approvals": 1,
        }
        # At once, not when there is need.
        assert rig.engine.cache.counts.free == before.free + dropped
        check_idle(rig.engine)
        for tenant in ("acme", "search"):
            assert "not valid" in assert_error(await ask(rig, tenant, PROMPT), 401)
        assert await hit(rig, "blue", PROMPT) == 48
        assert await hit(rig, "blue", [5] * 40) == 32
        async with rig.admin() as admin:
            runs = (await admin.get("/cache/tree")).json()["runs"]
        assert {each["domain"] for each in runs} == {"blue", "public"}
        entries = KeyFile(tmp_path / "keys.json").entries()
        assert [entry.tenant for entry in entries] == ["blue"]

    run_plain(check, tmp_path, *TENANTS)


def test_a_new_key_works_and_finds_nothing_of_before(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await ask(rig, "acme", PROMPT)
        await revoke(rig, "acme")
        made = await asyncio.to_thread(KeyFile(tmp_path / "keys.json").create, "acme")
        await asyncio.to_thread(rig.planes.authenticator.refresh)
        old, rig.keys = rig.keys, {**rig.keys, "acme": made.text}
        assert await hit(rig, "acme", PROMPT) == 0
        assert (await ask(rig, "acme", PROMPT)).status_code == 200
        assert await hit(rig, "acme", PROMPT) == 48
        rig.keys = old
        assert_error(await ask(rig, "acme", PROMPT), 401)

    run_plain(check, tmp_path, *TENANTS)


def test_a_domain_below_a_tenant_is_emptied_and_the_tenant_stays(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        narrow: dict[str, Any] = {"cache": {"domain": "acme/chat/a"}}
        await ask(rig, "acme", PROMPT, **narrow)
        await ask(rig, "acme", PROMPT)
        receipt = await revoke(rig, "acme/chat")
        assert (receipt["revoked_keys"], receipt["dropped_blocks"]) == (0, 4)
        assert await hit(rig, "acme", PROMPT, **narrow) == 0
        assert await hit(rig, "acme", PROMPT) == 48

    run_plain(check, tmp_path, *TENANTS)


def test_where_nobody_needs_a_key_only_what_is_there_goes(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await ask(rig, None, PROMPT)
        receipt = await revoke(rig, "local", "?requests=drain")
        assert (receipt["revoked_keys"], receipt["dropped_blocks"]) == (0, 4)
        assert await hit(rig, None, PROMPT) == 0

    run_plain(check, tmp_path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("public", "'public' is everybody's"),
        ("a//b", "path must be a path of a-z"),
        ("acme/", "path must be a path of a-z"),
        ("ACME", "path must be a path of a-z"),
        ("a%20b", "path must be a path of a-z"),
        ("...", "path must be a path of a-z"),
        ("acme?requests=kill", "requests must be 'abort' or 'drain'"),
    ],
)
def test_what_cannot_be_revoked(path: str, words: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:
            assert words in assert_error(await admin.delete(f"/domains/{path}"), 400)
        assert (await ask(rig, "acme", PROMPT)).status_code == 200

    run_plain(check, tmp_path, *TENANTS)


def test_a_domain_that_nobody_has_is_a_receipt_of_zero(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        receipt = await revoke(rig, "nobody/here")
        assert receipt["dropped_blocks"] == receipt["revoked_keys"] == 0

    run_plain(check, tmp_path, *TENANTS)


def test_if_the_file_cannot_be_written_the_keys_are_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: KeyFile, _tenants: object) -> int:
        raise ConfigError("cannot write the key file: Read-only file system")

    monkeypatch.setattr(KeyFile, "revoke_tenants", fail)

    async def check(rig: Rig) -> None:
        await ask(rig, "acme", PROMPT)
        async with rig.admin() as admin:
            message = assert_error(await admin.delete("/domains/acme"), 500)
        assert "Read-only" in message
        assert "make it writable" in message
        await asyncio.to_thread(rig.planes.authenticator.refresh)
        assert_error(await ask(rig, "acme", PROMPT), 401)
        assert check_idle(rig.engine)["idle"] == 0

    run_plain(check, tmp_path, *TENANTS)


# -- requests ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_running_and_queued_requests_are_aborted(stream: bool, tmp_path: Path) -> None:  # noqa: FBT001
    async def check(rig: Rig, runner: PlaneRunner) -> None:
        await ask(rig, "blue", PROMPT)
        runner.is_open.clear()
        mine = [
            start(rig, tenant, [number, *range(40)], max_tokens=400, stream=stream)
            for number in range(4)
            for tenant in ("acme", "search")
        ]
        others = [start(rig, "blue", [9, *range(40)], max_tokens=4) for _ in range(2)]
        await begun(rig, 10)
        revoking = asyncio.create_task(revoke(rig, "acme"))
        # It waits for the engine's turn.
        await until(lambda: bool(rig.planes.engine._commands))
        # Nobody comes in while the engine is still in its step.
        assert_error(await ask(rig, "acme", PROMPT), 401)
        runner.is_open.set()
        receipt = await revoking
        assert (receipt["revoked_keys"], receipt["aborted_requests"]) == (2, 8)
        for each in mine:
            assert_revoked(await each.answer())
        for each in others:
            assert (await each.answer()).status == 200
        counts = await settled(rig)
        assert counts["private"] == counts["shared"] == 0
        assert await hit(rig, "blue", PROMPT) == 48
        async with rig.admin() as admin:
            runs = (await admin.get("/cache/tree")).json()["runs"]
        assert {each["domain"] for each in runs} == {"blue"}
        assert sum(each["blocks"] for each in runs) == counts["idle"]

    run(check, tmp_path)


def test_a_stream_under_way_ends_with_an_error_event(tmp_path: Path) -> None:
    async def check(rig: Rig, _runner: PlaneRunner) -> None:
        streams = [
            start(rig, tenant, PROMPT, max_tokens=800, stream=True)
            for tenant in ("acme", "blue")
        ]
        for each in streams:
            for _ in range(4):
                assert await each.next_message() is not None
        receipt = await revoke(rig, "acme")
        assert receipt["aborted_requests"] == 1
        body = b""
        while (message := await streams[0].next_message()) is not None:
            body += message.get("body", b"")
        last = body.decode().rstrip().split("\n\n")[-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == ("domain_revoked", "permission_error")
        assert b"[DONE]" not in body
        streams[1].disconnect()
        await streams[1].wait()
        counts = await settled(rig)
        assert counts["private"] == counts["shared"] == 0
        assert await hit(rig, "blue", PROMPT) == 48

    run(check, tmp_path)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_drain_finish_and_leave_nothing(stream: bool, tmp_path: Path) -> None:  # noqa: FBT001
    async def check(rig: Rig, runner: PlaneRunner) -> None:
        runner.is_open.clear()
        mine = [
            start(rig, "acme", [number, *range(40)], max_tokens=20, stream=stream, n=2)
            for number in range(4)
        ]
        await begun(rig, 8)
        revoking = asyncio.create_task(revoke(rig, "acme", "?requests=drain"))
        # It waits for the engine's turn.
        await until(lambda: bool(rig.planes.engine._commands))
        runner.is_open.set()
        receipt = await revoking
        assert receipt["requests"] == "drain"
        assert (receipt["aborted_requests"], receipt["draining_requests"]) == (0, 8)
        for each in mine:
            answer = await each.answer()
            assert answer.status == 200
            if stream:
                assert answer.events[-1] == "[DONE]"
            else:
                assert answer.json["usage"]["completion_tokens"] == 40
        assert await settled(rig) == {"private": 0, "shared": 0, "idle": 0, "free": 256}

    run(check, tmp_path)


@pytest.mark.parametrize("requests", ["abort", "drain"])
def test_who_was_let_in_and_is_not_queued_yet_is_refused(
    requests: str, tmp_path: Path
) -> None:
    async def check(rig: Rig, runner: PlaneRunner) -> None:
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4}
        slow = [call(rig, tenant).start() for tenant in ("acme", "search", "blue")]
        await asyncio.sleep(0.02)
        receipt = await revoke(rig, "acme", f"?requests={requests}")
        assert receipt["revoked_keys"] == 2
        for each in slow:
            each.feed(json.dumps(body).encode())
        statuses = [(await each.answer()).status for each in slow]
        assert statuses == [401, 401, 200]
        # One that is about to be queued while the engine is in a step.
        made = await asyncio.to_thread(KeyFile(tmp_path / "keys.json").create, "acme")
        await asyncio.to_thread(rig.planes.authenticator.refresh)
        rig.keys = {**rig.keys, "acme": made.text}
        runner.is_open.clear()
        blue = start(rig, "blue", [8, *range(40)], max_tokens=4)
        await begun(rig, 1)
        revoking = asyncio.create_task(revoke(rig, "acme", f"?requests={requests}"))
        late = start(rig, "acme", PROMPT, max_tokens=4)
        await asyncio.sleep(0.1)
        runner.is_open.set()
        await revoking
        answer = await late.answer()
        assert answer.status in (401, 403), answer.body
        assert (await blue.answer()).status == 200
        async with rig.admin() as admin:
            runs = (await admin.get("/cache/tree")).json()["runs"]
        assert {each["domain"] for each in runs} == {"blue"}
        await settled(rig)

    run(check, tmp_path)


def test_one_with_a_permit_is_refused_on_the_engines_thread(tmp_path: Path) -> None:
    """What narrows into the domain keeps its key, and must not come in behind its back."""

    async def check(rig: Rig, runner: PlaneRunner) -> None:
        runner.is_open.clear()
        blue = start(rig, "blue", [8, *range(40)], max_tokens=4)
        await begun(rig, 1)
        cache = {"domain": "acme/chat"}
        late = start(rig, "acme", PROMPT, max_tokens=4, cache=cache)
        await until(lambda: bool(rig.planes.engine._commands))
        # Taken before the revocation, and carried out before it: ended by the engine.
        revoking = asyncio.create_task(revoke(rig, "acme/chat"))
        await until(lambda: len(rig.planes.engine._commands) == 2)
        # In the other order, as if the call had been slower to get there.
        rig.planes.engine._commands.reverse()
        runner.is_open.set()
        receipt = await revoking
        assert receipt["aborted_requests"] == receipt["revoked_keys"] == 0
        assert_revoked(await late.answer())
        assert (await blue.answer()).status == 200
        await settled(rig)
        assert await hit(rig, "acme", PROMPT, cache=cache) == 0
        assert (await ask(rig, "acme", PROMPT, cache=cache)).status_code == 200

    run(check, tmp_path)


def test_operators_prompts_of_the_domain_are_ended_with_a_sentence(tmp_path: Path) -> None:
    async def check(rig: Rig, runner: PlaneRunner) -> None:
        runner.is_open.clear()
        warming = asyncio.create_task(
            post(rig, "/cache/warm", {"prompt": [1] * 300, "tenant": "acme"})
        )
        body = {"prompt": [2] * 300, "domain": "acme", "label": "a"}
        approving = asyncio.create_task(post(rig, "/cache/approve", body))
        await begun(rig, 2)
        revoking = asyncio.create_task(revoke(rig, "acme"))
        # It waits for the engine's turn.
        await until(lambda: bool(rig.planes.engine._commands))
        runner.is_open.set()
        receipt = await revoking
        assert receipt["aborted_requests"] == 2
        answers: list[httpx2.Response] = [await warming, await approving]
        for answer in answers:
            assert "revoked while this was computed" in assert_error(answer, 409)
        assert await settled(rig) == {"private": 0, "shared": 0, "idle": 0, "free": 256}
        async with rig.admin() as admin:
            assert (await admin.get("/cache/approvals")).json() == {"approvals": []}

    run(check, tmp_path)
