"""Nothing that was sent shows where it does not belong, whatever goes wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from starlette.types import ASGIApp

from prefold.blocks.table import BlockCopy
from prefold.engine.batch import StepPlan
from prefold.engine.engine import Engine
from prefold.server.chat_template import ChatTemplate, Conversation
from prefold.server.config import TenantConfig
from prefold.server.keys import KeyFile
from support.asgi_call import Answer, AsgiCall, request
from support.canaries import Canaries, Recorder
from support.planes_rig import MODEL, Rig, RigSettings, open_rig
from support.public_plane import CHAT, TEXT, until
from support.server_process import start_server
from support.sessions import ChainRunner
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

TENANTS = (TenantConfig(name="acme"), TenantConfig(name="globex"))

#: One that leaves nothing out.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ call | tojson }}{% endfor %}"
    "{{ message['tool_call_id'] }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)

#: Shown to operators only: they have written it.
LABEL = "a label"


class TalkativeRunner:
    """A runner whose faults say all that it was computing.

    Attributes:
        is_open: While it is cleared, steps wait.
        fails: Whether steps fail.
    """

    def __init__(self, runner: ChainRunner) -> None:
        self._runner = runner
        self.is_open = threading.Event()
        self.is_open.set()
        self.fails = False

    def execute(self, plan: StepPlan) -> torch.Tensor:
        assert self.is_open.wait(60)
        if self.fails:
            raise RuntimeError(f"no: {[piece.token_ids.tolist() for piece in plan.slices]}")
        return self._runner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._runner.copy_blocks(copies)


@dataclass
class Sent:
    """What is looked for."""

    canaries: Canaries = field(default_factory=Canaries)

    def __post_init__(self) -> None:
        watch = self.canaries.text
        self.prompt = watch("a prompt", 'Wq/7 "zebra+ä" <prompt> XV?k ')
        self.tokens = self.canaries.tokens("token ids", [213, 37, 198, 41, 226, 92, 180, 7])
        self.system = watch("a system message", 'Jx&9 "yak=é" {system} UT;m ')
        self.argument = watch("a tool's argument", "Hv%3 'gnu#ö' [argument] RS:p ")
        self.tool = watch("a tool", "Gd~5 'emu@ü' (tool) PQ!r ")
        self.salt = watch("a salt", "Nb*1 'ibis^ß' |salt| LM,t ")
        self.stop = watch("a stop", "Cf$8 'lynx%å' |stop| DE,u ")
        self.junk = watch("bad JSON", "Zc.4 'kudu ñ' |junk| FG-w ")
        self.field = watch("a field's name", "Mg+6 'coati ø' |field| BA_y ")
        self.label = watch(LABEL, "Ty=2 'tapir ï' |label| OI.z ")
        self.malformed = watch("a malformed key", "Kr-0-okapi-malformed-key-")
        self.wrong = "pf_0123456789abcdef_" + watch("a wrong key", "5d" * 8 + "e7" * 24)


def secret_of(key: str) -> str:
    """Return a key without its public id, which logs show."""
    return key.rpartition("_")[2]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Hear everything that any logger says."""
    recorder = Recorder()
    root = logging.getLogger()
    names = list(root.manager.loggerDict)
    loggers = [root, *map(logging.getLogger, names)]
    before = [(logger, logger.level, logger.disabled) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.disabled = False
    root.addHandler(recorder)
    yield recorder
    root.removeHandler(recorder)
    for logger, level, is_disabled in before:
        logger.setLevel(level)
        logger.disabled = is_disabled


# -- the load ------------------------------------------------------------------------------


def bodies_of(sent: Sent) -> list[tuple[str, dict[str, Any]]]:
    """Return requests that are served, of every kind."""
    salted = {"model": MODEL, "cache_salt": sent.salt, "user": sent.prompt}
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": sent.tool, "parameters": {}},
        }
    ]
    call = {"name": "f", "arguments": json.dumps({"x": sent.argument})}
    messages = [
        {"role": "system", "content": sent.system},
        {"role": "user", "content": sent.prompt * 3},
        {
            "role": "assistant",
            "content": sent.argument,
            "tool_calls": [{"id": "1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "1", "content": sent.argument},
    ]
    text = {**salted, "max_tokens": 4, "stop": [sent.stop]}
    return [
        (TEXT, {**text, "prompt": sent.prompt * 4}),
        (TEXT, {**text, "prompt": sent.tokens * 6, "n": 2}),
        (TEXT, {**text, "prompt": sent.tokens * 6, "stream": True, "logprobs": 2}),
        (CHAT, {**salted, "messages": messages, "max_tokens": 4}),
        (CHAT, {**salted, "messages": messages[:2], "max_tokens": 4, "stream": True}),
        (CHAT, {**salted, "messages": messages[:2], "tools": tools, "max_tokens": 4}),
    ]


def bad_bodies_of(sent: Sent) -> list[tuple[str, object]]:
    """Return requests that are refused, each for another reason."""
    return [
        *[
            (path, {**body, **wrong})
            for path, body in bodies_of(sent)
            for wrong in (
                {sent.field: sent.prompt},
                {"model": sent.prompt},
                {"n": sent.prompt},
                {"max_tokens": 10**9},
                {"cache_salt": sent.salt * 20},
                {"cache": {"domain": sent.prompt}},
                {"cache": {"domain": "globex", sent.field: 1}},
                {"cache": {"approved": [sent.prompt]}},
                {"logit_bias": {sent.prompt: 1}},
                {"stop": [sent.stop, 5]},
                {"metadata": {"x": [sent.prompt]}},
                {"response_format": {"type": sent.prompt}},
            )
        ],
        (TEXT, {"model": MODEL, "prompt": [*sent.tokens, 10**6]}),
        (TEXT, {"model": MODEL, "prompt": [*sent.tokens, sent.prompt]}),
        (TEXT, {"model": MODEL, "prompt": sent.prompt * 2000}),
        (TEXT, {"model": MODEL, "prompt": sent.tokens * 2000}),
        (CHAT, {"model": MODEL, "messages": [{"role": sent.prompt, "content": sent.junk}]}),
        (CHAT, {"model": MODEL, "messages": [{"role": "user", sent.field: sent.prompt}]}),
        (TEXT, f'{{"model": "{sent.junk}'.encode()),
        (TEXT, f'{{"model": {sent.junk}}}'.encode()),
        (TEXT, sent.junk.encode("latin-1")),
        (TEXT, b"[" * 500 + sent.junk.encode()),
        (f"/{sent.field}", {"prompt": sent.prompt}),
    ]


def operations_of(sent: Sent) -> list[tuple[str, object]]:
    """Return what operators send, right and wrong."""
    prompts: list[object] = [sent.prompt * 4, sent.tokens * 6]
    work: list[tuple[str, object]] = []
    for number, prompt in enumerate(prompts):
        whose = {"prompt": prompt, "tenant": "acme", "cache_salt": sent.salt}
        approval = {"domain": "acme", "label": f"{sent.label}{number}", "prompt": prompt}
        work += [
            ("/cache/warm", whose),
            ("/cache/lookup", whose),
            ("/cache/lookup", {**whose, "tenant": sent.prompt}),
            ("/cache/warm", {**whose, "domain": sent.prompt}),
            ("/cache/approve", approval),
            ("/cache/approve", {**approval, "pinned": True}),
            ("/cache/approve", {**approval, "prompt": [*sent.tokens]}),
            ("/cache/approve", {**approval, sent.field: 1}),
            ("/cache/invalidate", {"prompt": prompt, sent.field: 1}),
            ("/cache/invalidate", {"prompt": prompt, "everything": True}),
            ("/cache/invalidate", {"field": sent.field, "value": sent.prompt}),
            ("/cache/invalidate", {"prompt": prompt, "domain": "acme"}),
            ("/cache/withdraw", {"id": sent.prompt}),
            ("/cache/reset", {sent.field: sent.prompt}),
            ("/model/swap", {sent.field: sent.prompt}),
        ]
    return [
        *work,
        ("/model/swap", {"source": "/nowhere/at/all"}),
        ("/model/reload-template", {}),
        ("/cache/approve", f'{{"label": "{sent.junk}'.encode()),
    ]


class Client:
    """Sends to both planes and keeps what each says that is no reply to a tenant.

    Attributes:
        told: Errors of the public plane.
        shown: Every answer of the admin plane.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.told: list[str] = []
        self.shown: list[str] = []

    async def public(
        self, path: str, body: object, key: str | None, method: str = "POST"
    ) -> Answer:
        answer = await request(self._rig.planes.public, method, path, body, key=key)
        if answer.status >= 400 or b'{"error"' in answer.body:
            self.told.append(answer.body.decode())
        self.told.append(repr(answer.headers))
        return answer

    async def admin(self, path: str, body: object = None, method: str = "POST") -> Answer:
        token = self._rig.token.authorization.removeprefix("Bearer ")
        answer = await request(self._rig.planes.admin, method, path, body, key=token)
        self.shown.append(answer.body.decode() + repr(answer.headers))
        return answer


def test_no_canary_is_ever_seen(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent()
    runners: list[TalkativeRunner] = []
    monkeypatch.setattr("support.planes_rig.CHAT_TEMPLATE", TEMPLATE)

    def wrap(runner: ChainRunner) -> TalkativeRunner:
        runners.append(TalkativeRunner(runner))
        return runners[-1]

    async def main() -> Client:
        settings = RigSettings(
            directory=tmp_path, tenants=TENANTS, max_model_len=1024, wrap_runner=wrap
        )
        async with open_rig(settings) as rig:
            for name, key in rig.keys.items():
                sent.canaries.text(f"the key of {name}", secret_of(key))
            client = Client(rig)
            await load(rig, client, sent, runners[0], monkeypatch)
            return client

    client = asyncio.run(asyncio.wait_for(main(), 120))
    found = sent.canaries.found_in
    for text in [*recorder.texts, *client.told]:
        assert not found(text), text
    for text in client.shown:
        assert not found(text, but=[LABEL]), text
    # What was looked at was there.
    assert any("request_id=" in text for text in recorder.texts)
    assert len(client.told) > 80
    assert any(sent.label[:4] in text for text in client.shown)


async def load(
    rig: Rig,
    client: Client,
    sent: Sent,
    runner: TalkativeRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Do everything that can be done, and all that can go wrong."""
    acme, globex = rig.keys["acme"], rig.keys["globex"]
    for path, body in bodies_of(sent):
        answer = await client.public(path, body, acme)
        assert answer.status == 200, answer.body
    for path, bad in bad_bodies_of(sent):
        answer = await client.public(path, bad, acme)
        assert answer.status >= 400, bad
    for key in (sent.wrong, sent.malformed, acme[:-1], f"{acme}{sent.malformed}"):
        assert (await client.public(TEXT, bodies_of(sent)[0][1], key)).status == 401
    for path, operation in operations_of(sent):
        await client.admin(path, operation)
    await look_around(rig, client)
    await crash(client, sent, runner, acme, monkeypatch)
    await look_at_objects(rig, sent, runner, acme)
    await client.admin("/domains/globex", method="DELETE")
    assert (await client.public(TEXT, bodies_of(sent)[0][1], globex)).status == 401
    known = rig.planes.authenticator._key_file
    assert known is not None
    KeyFile(known._path).revoke(acme.split("_")[1])
    await client.public(TEXT, bodies_of(sent)[0][1], acme)
    await look_around(rig, client)


async def look_around(rig: Rig, client: Client) -> None:
    """Read everything that operators can read."""
    named = await request(
        rig.planes.public, "GET", "/v1/models", headers={"x-request-id": "q"}
    )
    assert named.status == 401
    for path in (
        *("/cache/tree", "/cache/approvals", "/cache/stats", "/cache/whatif"),
        *("/cache/runs", "/cache/figures"),
        *("/queue", "/metrics"),
        *("/health", "/openapi.json", "/requests/q/timing"),
    ):
        await client.admin(path, method="GET")


async def crash(
    client: Client,
    sent: Sent,
    runner: TalkativeRunner,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let steps and handlers fail with messages that say everything."""
    runner.fails = True
    for path, body in bodies_of(sent):
        # In another domain, so that there is something to compute.
        answer = await client.public(path, {**body, "cache": {"read": False}}, key)
        assert answer.status == 500 or b'{"error"' in answer.body
    await client.admin("/cache/warm", {"prompt": sent.prompt * 9, "tenant": "acme"})
    runner.fails = False

    def render(_: ChatTemplate, conversation: Conversation) -> str:
        raise RuntimeError(f"cannot render {conversation.messages}, {conversation.tools}")

    with monkeypatch.context() as patched:
        patched.setattr(ChatTemplate, "render", render)
        for path, body in bodies_of(sent):
            if path == CHAT:
                assert (await client.public(path, body, key)).status == 500
        prompt = {"messages": bodies_of(sent)[3][1]["messages"], "tenant": "acme"}
        await client.admin("/cache/warm", prompt)


async def look_at_objects(rig: Rig, sent: Sent, runner: TalkativeRunner, key: str) -> None:
    """Look at all of this project's objects while requests wait, run and are read."""
    runner.is_open.clear()
    calls = [start(rig.planes.public, path, body, key) for path, body in bodies_of(sent)]
    engine = rig.planes.engine
    await until(lambda: rig.engine.num_open + len(engine._commands) >= len(calls))
    try:
        seen = set()
        for item in gc.get_objects():
            kind = type(item)
            if not str(kind.__module__).startswith("prefold"):
                continue
            seen.add(kind.__name__)
            for text in (str(item), repr(item)):
                found = sent.canaries.found_in(text, but=[LABEL])
                assert not found, f"{kind.__module__}.{kind.__qualname__}: {found}"
        assert seen >= {"Engine", "PromptPlan", "Exchange", "SamplingParams", "Ticket"}
    finally:
        runner.is_open.set()
    for call in calls:
        await call.wait()
    await rig.planes.engine.call(Engine.check_invariants)


def start(app: ASGIApp, path: str, body: dict[str, Any], key: str) -> AsgiCall:
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    return AsgiCall(app, "POST", path, headers).feed(json.dumps(body).encode()).start()


# -- the searcher itself -------------------------------------------------------------------


def test_a_canary_is_found_in_every_dress(recorder: Recorder) -> None:
    sent = Sent()
    log = logging.getLogger("prefold.server.exchange")
    canary = sent.prompt
    numbers = ", ".join(map(str, make_tokenizer().encode(canary)))
    log.debug("it was %s", canary)
    log.info("a body: %s", json.dumps({"prompt": canary}))
    log.info("%r", canary.encode())
    log.info("hex %s", canary.encode().hex().upper())
    log.info("[%s]", numbers)
    log.info("tensor of\n%s", numbers.replace(", ", "\n "))
    log.info("%d lost", 3, extra={})
    try:
        raise RuntimeError(canary)
    except RuntimeError:
        log.exception("failed")
    hits = [sent.canaries.found_in(text) for text in recorder.texts]
    assert hits == [["a prompt"]] * 6 + [[]] + [["a prompt"]]
    assert sent.canaries.found_in(str(sent.tokens * 2)) == ["token ids"]
    assert sent.canaries.found_in(f"{sent.label}") == [LABEL]
    assert sent.canaries.found_in(f"{sent.label}", but=[LABEL]) == []


# -- the program ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_writes_no_canary_down(tmp_path: Path) -> None:
    sent = Sent()
    model = save_model(make_llama(), tmp_path / "llama")
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    key = KeyFile(tmp_path / "keys.json").create("acme").text
    sent.canaries.text("the key", secret_of(key))
    config = (
        f'[server]\nkey_file = "{tmp_path}/keys.json"\n'
        '[[tenants]]\nname = "acme"\n[[tenants]]\nname = "globex"\n'
    )
    with start_server(model, tmp_path, "--cache-blocks", "64", config=config) as server:
        server.wait_until_ready()
        served = {"model": server.ready["model"]}
        with server.public(key) as public, server.admin() as admin:
            for path, body in bodies_of(sent):
                assert public.post(path, json={**body, **served}).status_code == 200
            for path, bad in bad_bodies_of(sent):
                send(public, path, bad)
            for path, operation in operations_of(sent):
                send(admin, path, operation)
            for wrong in (sent.wrong, sent.malformed):
                headers = {"authorization": f"Bearer {wrong}"}
                assert public.get("/v1/models", headers=headers).status_code == 401
            assert admin.delete("/domains/acme").status_code == 200
        url = httpx2.URL(str(server.ready["public_url"]))
        with socket.create_connection((url.host, int(url.port or 0)), timeout=60) as raw:
            raw.sendall(f"{sent.junk} HTTP/9\r\n{sent.field}\r\n\r\n".encode())
            raw.recv(1000)
        code, out = server.end()
    assert code == 0
    assert "request_id=" in server.err
    for line in [*server.err.splitlines(), *out.splitlines(), json.dumps(server.ready)]:
        assert not sent.canaries.found_in(line), line


def send(client: httpx2.Client, path: str, body: object) -> None:
    if isinstance(body, bytes):
        headers = {"content-type": "application/json"}
        client.post(path, content=body, headers=headers)
    else:
        client.post(path, json=body)
