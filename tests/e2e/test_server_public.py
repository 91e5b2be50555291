"""The public plane over a real model: equal bits, exact counts, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefold.engine.config import SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.server.config import ServerConfig
from prefold.server.credentials import Authenticator
from support.live_server import raw_request, serving
from support.public_plane import (
    CHAT,
    TEXT,
    PublicPlane,
    cached_tokens,
    chat_body,
    make_authenticator,
    open_plane,
    run,
    text_body,
    until,
)
from support.sessions import CHAT_TEMPLATE
from support.tiny_engines import TinyEngine, load_tiny
from support.tiny_models import make_llama

pytestmark = pytest.mark.e2e

BLOCK = 16
OFF = {"read": False, "write": False}
SYSTEM = "You lend tools to the people of this town, and you answer in one sentence. " * 3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    loaded = load_tiny(make_llama(), tmp_path_factory.mktemp("llama"))
    loaded.tokenizer.chat_template = CHAT_TEMPLATE
    return loaded


@asynccontextmanager
async def tiny_plane(
    loaded: LoadedModel,
    *,
    num_blocks: int = 256,
    scheduler: SchedulerConfig | None = None,
    config: ServerConfig | None = None,
    authenticator: Authenticator | None = None,
) -> AsyncIterator[PublicPlane]:
    core = TinyEngine(
        loaded, num_blocks=num_blocks, scheduler=scheduler, has_tokenizer=True
    )
    async with open_plane(
        core,
        loaded.tokenizer,
        core.fingerprint,
        config=config,
        authenticator=authenticator,
    ) as plane:
        yield plane


def tokens_of(seed: int, length: int) -> list[int]:
    """Return pseudo-random token ids; different seeds have no beginning in common."""
    found: list[int] = np.random.default_rng(seed).integers(0, 256, length).tolist()
    return found


def said(reply: Any) -> Any:
    """Return what a reply says, log-probabilities included, without its head."""
    return reply["choices"]


def streamed(events: list[Any], num_choices: int) -> list[tuple[str, list[Any]]]:
    """Return each choice's text and log-probabilities of a stream that is complete."""
    assert events[-1] == "[DONE]"
    found: list[tuple[str, list[Any]]] = [("", []) for _ in range(num_choices)]
    for event in events[:-1]:
        for choice in event["choices"]:
            text, rows = found[choice["index"]]
            if "delta" in choice:
                text += choice["delta"].get("content", "")
                rows += (choice.get("logprobs") or {}).get("content", [])
            else:
                text += choice["text"]
                rows += (choice["logprobs"] or {}).get("token_logprobs", [])
            found[choice["index"]] = (text, rows)
    return found


def whole(reply: Any) -> list[tuple[str, list[Any]]]:
    """Return the same of a reply that came whole."""
    if "text" in reply["choices"][0]:
        return [
            (c["text"], (c["logprobs"] or {}).get("token_logprobs", []))
            for c in reply["choices"]
        ]
    return [
        (c["message"]["content"], (c["logprobs"] or {}).get("content", []))
        for c in reply["choices"]
    ]


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Return requests with long beginnings in common."""
    questions = ["Who has the drill?", "Who has the drill now?", "When is it back?"]
    text = [
        (TEXT, text_body(SYSTEM + question, max_tokens=12, logprobs=3))
        for question in questions
    ]
    chat = [
        (
            CHAT,
            {
                **chat_body(question, max_tokens=12, logprobs=True, top_logprobs=3),
                "messages": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": question},
                ],
            },
        )
        for question in questions
    ]
    drawn = [
        (TEXT, text_body(SYSTEM, max_tokens=9, temperature=1.5, seed=5, n=3, logprobs=0)),
        (TEXT, text_body(SYSTEM + "!", max_tokens=2, echo=True, logprobs=2)),
    ]
    return [*text, *chat, *drawn]


def test_replies_are_the_same_bits_with_the_cache_on_and_off(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with tiny_plane(loaded) as plane:

            async def ask(path: str, body: dict[str, Any]) -> Any:
                answer = await plane.post(path, body)
                assert answer.status == 200, answer.body
                return answer.json

            off = [await ask(path, {**body, "cache": OFF}) for path, body in requests()]
            assert all(cached_tokens(reply) == 0 for reply in off)
            cold = [await ask(path, body) for path, body in requests()]
            warm = [await ask(path, body) for path, body in requests()]
            together = await asyncio.gather(*(ask(*request) for request in requests()))
            for replies in (cold, warm, together):
                assert list(map(said, replies)) == list(map(said, off))
            # The second request of each route shares the beginning with the first one.
            assert cached_tokens(cold[1]) >= len(SYSTEM) // 2
            assert all(cached_tokens(reply) > 0 for reply in (*warm, *together))
            await plane.assert_nothing_is_held()

    run(test)


def test_streams_say_what_whole_replies_say(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with tiny_plane(loaded) as plane:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            for path, body in requests():
                for salt in ("cold", "warm"):
                    fields = {**body, "cache_salt": f"{salt} {path}"}
                    if salt == "warm":
                        await plane.post(path, fields)
                    events = (await plane.post(path, {**fields, **options})).events
                    reply = (await plane.post(path, {**fields, "cache": OFF})).json
                    assert streamed(events, len(reply["choices"])) == whole(reply)
                    usage = events[-2]["usage"]
                    assert usage["completion_tokens"] == reply["usage"]["completion_tokens"]
                    assert usage["prompt_tokens"] == reply["usage"]["prompt_tokens"]

    run(test)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "stream"])
def test_lengths_around_whole_blocks(loaded: LoadedModel, *, is_streamed: bool) -> None:
    lengths = [1, 2, 15, 16, 17, 31, 32, 33, 160]

    async def test() -> None:
        async with tiny_plane(loaded) as plane:

            async def ask(prompt: list[int]) -> tuple[int, Any]:
                if not is_streamed:
                    reply = await plane.complete(prompt, max_tokens=3, logprobs=5)
                    return cached_tokens(reply), whole(reply)
                body = text_body(
                    prompt,
                    max_tokens=3,
                    logprobs=5,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                events = (await plane.post(TEXT, body)).events
                return cached_tokens(events[-2]), streamed(events, 1)

            for length in lengths:
                prompt = tokens_of(length, length)
                full = (length - 1) // BLOCK * BLOCK
                hits, replies = zip(*[await ask(prompt) for _ in range(3)], strict=True)
                assert hits[0] == 0
                assert all(full <= hit <= length - 1 for hit in hits[1:])
                assert replies[0] == replies[1] == replies[2]
                # One token more, and every strict beginning.
                more, _ = await ask([*prompt, 7])
                assert length // BLOCK * BLOCK <= more <= length
                for shorter in {1, length - BLOCK, length - 1} - {0}:
                    if 0 < shorter < length:
                        hit, _ = await ask(prompt[:shorter])
                        assert (shorter - 1) // BLOCK * BLOCK <= hit <= shorter - 1
            await plane.assert_nothing_is_held()

    run(test)


def test_tenants_meet_nothing_of_each_other(loaded: LoadedModel, tmp_path: Path) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")

    async def test() -> None:
        async with tiny_plane(loaded, authenticator=authenticator) as plane:
            core = plane.engine.engine
            for salt in (None, "a", "b"):
                for path, body in requests():
                    fields = {**body, "cache_salt": salt}
                    seen: dict[str, list[Any]] = {}
                    computed: dict[str, list[int]] = {}
                    for name, key in keys.items():
                        for _ in range(2):
                            before = core.counters.num_computed_tokens
                            answer = await plane.post(path, fields, key=key)
                            assert answer.status == 200, answer.body
                            spent = core.counters.num_computed_tokens - before
                            seen.setdefault(name, []).append(answer.json["usage"])
                            computed.setdefault(name, []).append(spent)
                    # Whoever comes second sees, and costs, what the first one did.
                    assert seen["acme"] == seen["globex"]
                    assert computed["acme"] == computed["globex"]
                    repeat = seen["globex"][1]
                    hit = repeat["prompt_tokens_details"]["cached_tokens"]
                    assert hit >= repeat["prompt_tokens"] - 5
            await plane.assert_nothing_is_held("acme")
            await plane.assert_nothing_is_held("globex")

    run(test)


def test_a_tenant_cannot_name_another_s_domain(loaded: LoadedModel, tmp_path: Path) -> None:
    authenticator, keys = make_authenticator(tmp_path / "keys.json")

    async def test() -> None:
        async with tiny_plane(loaded, authenticator=authenticator) as plane:
            body = text_body(SYSTEM, max_tokens=1)
            await plane.post(TEXT, {**body, "cache_salt": "s"}, key=keys["acme"])
            await plane.post(TEXT, body, key=keys["acme"])
            for salt in (
                "s",
                "acme",
                "acme/s",
                "acme\0s",
                "../acme",
                "public",
                "own(acme)",
            ):
                for headers in ({}, {"x-tenant": "acme", "x-prefold-domain": "acme"}):
                    answer = await plane.post(
                        TEXT,
                        {**body, "cache_salt": salt, "max_tokens": 1, "user": "acme"},
                        key=keys["globex"],
                        headers=headers,
                    )
                    assert answer.status == 200
                    if not headers:
                        assert cached_tokens(answer.json) == 0
            for field in ("domain", "tenant", "namespace", "extra_key"):
                answer = await plane.post(TEXT, {**body, field: "acme"}, key=keys["globex"])
                assert answer.status == 400

    run(test)


def test_preempted_requests_end_with_the_same_words_and_counts(
    loaded: LoadedModel,
) -> None:
    # Room for one and a half of them.
    scheduler = SchedulerConfig(max_step_tokens=64, max_running=8)

    async def test() -> None:
        async with tiny_plane(loaded, num_blocks=24, scheduler=scheduler) as plane:
            bodies = [
                text_body(tokens_of(seed, 120), max_tokens=110, ignore_eos=True, logprobs=0)
                for seed in range(4)
            ]
            replies = await asyncio.gather(*(plane.post(TEXT, body) for body in bodies))
            assert plane.engine.engine.counters.num_preemptions > 0
            for body, answer in zip(bodies, replies, strict=True):
                # A retry hits what the first try computed; that is no hit of the request.
                assert cached_tokens(answer.json) == 0
                alone = (await plane.post(TEXT, {**body, "cache": OFF})).json
                assert said(alone) == said(answer.json)
            await plane.assert_nothing_is_held()

    run(test)


# -- over a socket -------------------------------------------------------------------------


async def exchange(port: int, data: bytes, *, timeout_s: float = 20) -> bytes:
    """Send bytes and return all that comes until the server closes, or waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(timeout_s):
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(
                line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line
            )
            length = fields.get(b"content-length")
            return head + await reader.readexactly(int(length or b"0"))
    finally:
        writer.close()


def test_bad_bytes_over_a_socket(loaded: LoadedModel) -> None:
    async def test() -> None:
        config = ServerConfig(max_body_bytes=100_000)
        async with tiny_plane(loaded, config=config) as plane, serving(plane.app) as port:
            chunked = "transfer-encoding: chunked\r\n"
            head = (
                f"POST {TEXT} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                f"content-type: application/json\r\n{chunked}\r\n"
            ).encode()
            piece = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
            good = json.dumps(text_body("x", max_tokens=1)).encode()
            cases = [
                (raw_request(TEXT, good), 200),
                (raw_request(TEXT, b"", length=100_000), 413),
                (raw_request(TEXT, b" " * 100_000), 413),
                # A client reads the answer when all of it is sent.
                (raw_request(TEXT, b" " * 5_000_000), 413),
                (raw_request(TEXT, b" " * 99_999), 400),
                (head + piece * 7, 413),
                (raw_request(TEXT, b"{"), 400),
                (raw_request(TEXT, b'{"a": "\xff"}'), 400),
                (raw_request(TEXT, b"[" * 10_000), 400),
                (raw_request("/nothing", good), 404),
                (raw_request("/health", good), 405),
            ]
            for data, status in cases:
                answer = await exchange(port, data)
                assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
                if status != 200:
                    assert set(json.loads(answer.split(b"\r\n\r\n")[1])) == {"error"}
            await plane.assert_nothing_is_held()

    run(test)


def leave(writer: asyncio.StreamWriter, way: str) -> None:
    """Close a connection by FIN, by RST, or only the half that this side sends on."""
    sock = writer.get_extra_info("socket")
    if way == "half":
        writer.write_eof()
        return
    if way == "reset":
        linger = struct.pack("ii", 1, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


@pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("way", ["close", "reset", "half"])
def test_a_client_that_leaves_leaves_no_block(
    loaded: LoadedModel, way: str, *, is_streamed: bool
) -> None:
    scheduler = SchedulerConfig(max_step_tokens=16, max_running=1)

    async def test() -> None:
        async with (
            tiny_plane(loaded, scheduler=scheduler) as plane,
            serving(plane.app) as port,
        ):
            core = plane.engine.engine
            writers = []
            # The first one is being computed or streamed, the second one waits.
            for seed in range(2):
                body = text_body(
                    tokens_of(seed, 800),
                    max_tokens=1000,
                    ignore_eos=True,
                    stream=is_streamed,
                )
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(raw_request(TEXT, json.dumps(body).encode()))
                writers.append(writer)
            await until(lambda: plane.limits.num_open("default") == 2)
            await until(lambda: core.counters.num_computed_tokens > 100)
            for writer in writers:
                leave(writer, way)
            await plane.assert_nothing_is_held()
            assert len(plane.watcher.outputs) == 2
            assert core.counters.num_sampled_tokens < 900
            # A short one gets its turn, and what was computed is right.
            reply = await plane.complete(tokens_of(0, 800), max_tokens=2, logprobs=5)
            assert cached_tokens(reply) > 0
            alone = await plane.complete(
                tokens_of(0, 800), max_tokens=2, logprobs=5, cache=OFF
            )
            assert said(reply) == said(alone)
            for writer in writers:
                writer.close()

    run(test)


def test_a_connection_is_kept_for_the_next_request(loaded: LoadedModel) -> None:
    async def test() -> None:
        async with tiny_plane(loaded) as plane, serving(plane.app) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for body in (
                text_body("x", max_tokens=2),
                text_body("x", max_tokens="2"),
                text_body("x", max_tokens=2),
            ):
                writer.write(raw_request(TEXT, json.dumps(body).encode()))
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
                [length] = [
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ]
                json.loads(await reader.readexactly(length))
            writer.close()

    run(test)
