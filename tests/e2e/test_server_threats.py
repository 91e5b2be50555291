"""What tenants and strangers may try, and what they get: nothing that is not theirs."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from prefold.engine.batch import StepPlan
from prefold.engine.config import SchedulerConfig
from prefold.engine.engine import Engine
from prefold.server.config import ServerConfig, TenantConfig
from prefold.server.credentials import Authenticator
from prefold.server.keys import KeyFile
from support.planes_rig import MODEL, Rig, RigSettings, assert_error, client_of, open_rig
from support.public_plane import (
    CHAT,
    TEXT,
    ChainPlane,
    cached_tokens,
    chat_body,
    public_plane,
    run,
    start,
    text_body,
    until,
)
from support.server_process import ServerProcess, start_server
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

TENANTS = (
    TenantConfig(name="acme", max_concurrent=100),
    TenantConfig(name="globex", max_concurrent=100),
    TenantConfig(name="initech", max_concurrent=100),
)


def in_rig(
    check: Callable[[Rig], Any], directory: Path, server: ServerConfig | None = None
) -> None:
    """Run a check against planes of its own."""

    async def main() -> None:
        settings = RigSettings(
            directory=directory, tenants=TENANTS, server=server or ServerConfig()
        )
        async with open_rig(settings) as rig:
            await check(rig)

    asyncio.run(asyncio.wait_for(main(), 120))


# -- T3: the order of service --------------------------------------------------------------

#: What the candidate is: nothing cached, cached by another tenant, or by its own.
_CACHED_BY = {"nobody": "decoy", "another tenant": "acme", "itself": "globex"}

#: What a step computed: for each sequence its prompt's tail, or nothing in the middle.
Schedule = list[list[tuple[int, int, tuple[int, ...]]]]


def prompt_of(rng: random.Random, length: int = 160) -> list[int]:
    return [rng.randrange(256) for _ in range(length)]


async def serve_queue(cached_by: str, seed: int, directory: Path) -> tuple[Schedule, int]:
    """Queue 64 requests behind one, the candidate among them.

    Returns every later step as the runner saw it, and the step of its first token.
    """
    rng = random.Random(seed)  # noqa: S311 -- a load, not a secret
    secret, decoy = prompt_of(rng), prompt_of(rng)
    queue = [(rng.choice(TENANTS).name, prompt_of(rng)) for _ in range(63)]
    queue.insert(rng.randrange(64), ("globex", secret))
    key_file = KeyFile(directory / f"{seed} {cached_by}.json")
    keys = {tenant.name: key_file.create(tenant.name).text for tenant in TENANTS}
    scheduler = SchedulerConfig(max_step_tokens=64, max_running=8)
    async with public_plane(
        authenticator=Authenticator(TENANTS, key_file), scheduler=scheduler, num_blocks=2048
    ) as plane:
        owner = _CACHED_BY[cached_by]
        first = (decoy, "acme") if owner == "decoy" else (secret, owner)
        await _ask(plane, first[0], keys[first[1]])
        schedule = _watch(plane)
        plane.runner.is_open.clear()
        tasks = [asyncio.create_task(_ask(plane, prompt_of(rng), keys["initech"]))]
        await until(lambda: plane.engine.engine.counters.num_admissions == 2)
        for index, (tenant, prompt) in enumerate(queue):
            tasks.append(asyncio.create_task(_ask(plane, prompt, keys[tenant])))
            await until(lambda k=index: _num_commands(plane) == k + 1)  # type: ignore[misc]
        plane.runner.is_open.set()
        await asyncio.gather(*tasks)
    served_at = next(
        number
        for number, step in enumerate(schedule)
        if any(end == len(secret) and _ends(secret, last) for _, end, last in step)
    )
    return schedule, served_at


def _ends(prompt: list[int], last: tuple[int, ...]) -> bool:
    return tuple(prompt[-len(last) :]) == last


async def _ask(plane: ChainPlane, prompt: list[int], key: str) -> None:
    answer = await plane.post(TEXT, text_body(prompt, max_tokens=3), key=key)
    assert answer.status == 200, answer.body


def _num_commands(plane: ChainPlane) -> int:
    return len(plane.engine._commands)


def _watch(plane: ChainPlane) -> Schedule:
    """Return a list that grows by what each step computes."""
    schedule: Schedule = []
    execute = plane.runner.execute

    def watched(plan: StepPlan) -> torch.Tensor:
        schedule.append(
            [
                (piece.start, piece.end, tuple(map(int, piece.token_ids[-8:])))
                for piece in plan.slices
            ]
        )
        return execute(plan)

    plane.runner.execute = watched  # type: ignore[method-assign]
    return schedule


def test_no_order_tells_what_another_tenant_has_cached(tmp_path: Path) -> None:
    async def test() -> None:
        for seed in range(3):
            nobody, nobody_at = await serve_queue("nobody", seed, tmp_path)
            other, other_at = await serve_queue("another tenant", seed, tmp_path)
            # Not the order only: every step computes the same positions of the same
            # requests, so neither order nor effort depends on the other tenant's cache.
            assert other == nobody
            assert other_at == nobody_at
            # Had there been a hit, this would have shown it.
            own, own_at = await serve_queue("itself", seed, tmp_path)
            assert own != nobody
            assert own_at < nobody_at

    run(test)


# -- T4: who may say whose cache it is -----------------------------------------------------

SECRET_TEXT = "The safe opens with the number on the back of the clock. " * 4

#: Salts that are some text; each may only narrow the sender's own domain.
_SALTS: list[Any] = [
    None,
    "victim-salt",
    "acme",
    "acme/victim-salt",
    "acme\0victim-salt",
    "../acme",
    "own(acme)",
    "public",
    "\u202eemca",
    "x" * 256,
    "[97,99,109,101]",
]
_BAD_SALTS: list[Any] = ["", 5, True, ["acme"], {"tenant": "acme"}, "x" * 257, "x" * 10**6]

_FOREIGN_HEADERS = {
    "x-tenant": "acme",
    "x-tenant-id": "acme",
    "x-prefold-tenant": "acme",
    "x-prefold-domain": "acme",
    "x-cache-salt": "victim-salt",
    "x-forwarded-user": "acme",
    "openai-organization": "acme",
    "openai-project": "acme",
}


def test_no_field_and_no_header_reaches_another_tenants_cache(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        routes = [
            (TEXT, {"model": MODEL, "prompt": SECRET_TEXT, "max_tokens": 1}),
            (
                CHAT,
                {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": SECRET_TEXT}],
                    "max_tokens": 1,
                },
            ),
        ]
        for path, body in routes:
            async with rig.public("acme") as victim:
                for salt in (None, "victim-salt"):
                    own = {**body, "cache_salt": salt}
                    await victim.post(path, json=own)
                    reply = (await victim.post(path, json=own)).json()
                    # What is there to be found: all of it but a few last tokens.
                    assert cached_tokens(reply) >= reply["usage"]["prompt_tokens"] - 5
            async with rig.public("globex") as attacker:
                for number, salt in enumerate(_SALTS):
                    more = {"user": "acme", "prompt_cache_key": "acme"}
                    if salt is not None:
                        more["cache_salt"] = salt
                    response = await attacker.post(
                        f"{path}?tenant=acme&cache_salt=victim-salt",
                        # Its own earlier attempt with this salt must not be hit either.
                        json={**body, **more, "metadata": {"tenant": "acme"}},
                        headers=_FOREIGN_HEADERS,
                    )
                    assert response.status_code == 200, (number, response.text)
                    assert cached_tokens(response.json()) == 0, number
                    assert response.headers["x-prefold-cached-tokens"] == "0"
                for salt in _BAD_SALTS:
                    bad = {**body, "cache_salt": salt}
                    assert_error(await attacker.post(path, json=bad), 400)
                raw = json.dumps({**body, "cache_salt": "SALT"}).encode()
                for data in (b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\0"):
                    content = raw.replace(b"SALT", data)
                    response = await attacker.post(path, content=content, headers=_JSON)
                    assert_error(response, 400)
                for name in ("tenant", "domain", "namespace", "extra_key", "share_group"):
                    bad = {**body, name: "acme"}
                    assert_error(await attacker.post(path, json=bad), 400)

    in_rig(check, tmp_path)


def test_routes_without_a_cache_take_no_salt(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.public("globex") as client:
            for salt in [*_SALTS, *_BAD_SALTS]:
                body = {"prompt": SECRET_TEXT, "cache_salt": salt}
                assert_error(await client.post("/tokenize", json=body), 400)

    in_rig(check, tmp_path)


def test_operators_see_the_domain_they_name_and_no_other(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.admin() as admin:

            async def hit(tenant: Any, salt: Any) -> int:
                body = {"prompt": SECRET_TEXT, "tenant": tenant, "cache_salt": salt}
                response = await admin.post("/cache/lookup", json=body)
                assert response.status_code == 200, response.text
                return int(response.json()["prompts"][0]["hit_tokens"])

            body = {"prompt": SECRET_TEXT, "tenant": "acme", "cache_salt": "victim-salt"}
            assert (await admin.post("/cache/warm", json=body)).status_code == 200
            assert await hit("acme", "victim-salt") > 0
            for salt in _SALTS:
                assert await hit("globex", salt) == 0
                assert (await hit("acme", salt) > 0) == (salt == "victim-salt")
            for path in ("/cache/warm", "/cache/lookup"):
                for salt in _BAD_SALTS:
                    bad = {**body, "cache_salt": salt}
                    assert_error(await admin.post(path, json=bad), 400)
                for other in (None, 5, ["acme"], {"name": "acme"}):
                    bad = {**body, "tenant": other}
                    assert_error(await admin.post(path, json=bad), 400)
                for name in ("", "acme/x", "nobody", "acme\0", "ACME", " acme"):
                    bad = {**body, "tenant": name}
                    assert_error(await admin.post(path, json=bad), 404)

    in_rig(check, tmp_path)


_JSON = {"content-type": "application/json"}


# -- T12: what the network and the logs show -----------------------------------------------


@pytest.fixture(scope="module")
def open_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServerProcess, str]]:
    """A server whose public plane is open to everybody, and a key."""
    model = save_model(make_llama(), tmp_path_factory.mktemp("llama"))
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(model)
    directory = tmp_path_factory.mktemp("server")
    key = KeyFile(directory / "keys.json").create("acme").text
    config = (
        f'[server]\nhost = "0.0.0.0"\nkey_file = "{directory}/keys.json"\n'
        '[[tenants]]\nname = "acme"\n'
    )
    with start_server(model, directory, "--cache-blocks", "64", config=config) as server:
        server.wait_until_ready()
        yield server, key


def test_only_the_public_plane_is_reached_from_elsewhere(
    open_server: tuple[ServerProcess, str],
) -> None:
    server, key = open_server
    ports = {
        name: httpx2.URL(str(server.ready[name])).port
        for name in ("public_url", "admin_url")
    }
    listening = listening_addresses(server.process.pid)
    if listening is None:
        pytest.skip("there is no /proc to look at")
    assert sorted(listening) == sorted(
        [("00000000", ports["public_url"]), ("0100007F", ports["admin_url"])]
    )
    # Nor is anybody told anything there who has no credential.
    for port in ports.values():
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            for path in ("/", "/metrics", "/cache/tree", "/v1/models", "/openapi.json"):
                for method in ("GET", "POST"):
                    assert_error(client.request(method, path, json={}), 401)
    with server.public(key) as public:
        url = httpx2.URL(str(server.ready["public_url"])).copy_with(host="127.0.0.1")
        assert public.get(url.join("/v1/models")).status_code == 200


def listening_addresses(pid: int) -> list[tuple[str, int]] | None:
    """Return where a process listens, in the kernel's words; None if it cannot be read."""
    descriptors = Path(f"/proc/{pid}/fd")
    if not descriptors.is_dir():
        return None
    own = {str(each.readlink()) for each in descriptors.iterdir()}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                address, port = fields[1].split(":")
                found.append((address, int(port, 16)))
    return found


#: Token ids that occur nowhere else, and the text that they are.
_CANARY_TEXT = "QZXJ"
_CANARY_SALT = "salt-W8K2"


@pytest.mark.parametrize("is_shown", [False, True], ids=["by default", "if allowed"])
def test_prompts_and_salts_are_shown_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_shown: bool
) -> None:
    tokens = make_tokenizer().encode(_CANARY_TEXT)
    caplog.set_level(logging.DEBUG)

    async def check(rig: Rig) -> None:
        shown = []
        async with rig.public("acme") as public, rig.admin() as admin:
            request_id = "none"
            for prompt in (_CANARY_TEXT * 20, tokens * 20):
                body = {"prompt": prompt, "cache_salt": _CANARY_SALT}
                asked = {**body, "model": MODEL, "max_tokens": 2}
                response = await public.post(TEXT, json=asked)
                assert response.status_code == 200
                request_id = response.headers["x-request-id"]
                for path in ("/cache/warm", "/cache/lookup"):
                    warmed = await admin.post(path, json={**body, "tenant": "acme"})
                    assert warmed.status_code == 200
                    shown.append(warmed.text)
                # A fault of either kind is said without what was sent.
                for bad in ({**asked, "n": "QZXJ"}, {**asked, "max_tokens": 10**9}):
                    refused = await public.post(TEXT, json=bad)
                    shown.append(refused.text)
            timing = f"/requests/{request_id}/timing"
            for path in ("/cache/stats", "/queue", "/metrics", "/health", timing):
                seen = await admin.get(path)
                shown.append(seen.text)
            tree = (await admin.get("/cache/tree")).text
        numbers = ", ".join(map(str, tokens))
        canaries = [_CANARY_TEXT, _CANARY_SALT, numbers, numbers.replace(" ", "")]
        for text in [*shown, caplog.text]:
            for canary in canaries:
                assert canary not in text
        for canary in canaries[1:]:
            assert canary not in tree
        # Only where the configuration says so, and only there.
        assert (_CANARY_TEXT in tree) == is_shown

    in_rig(check, tmp_path, ServerConfig(allow_prompt_text=is_shown))


# -- T14: keys -----------------------------------------------------------------------------


def dump_of(directory: Path) -> bytes:
    """Return all that stands in its files, the operator's own token apart."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() for path in files if path.name != "admin_token")


def test_a_stolen_directory_opens_nothing(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        dump = dump_of(tmp_path)
        assert len(dump) > 100
        for key in rig.keys.values():
            secret = key.rpartition("_")[2]
            for form in (key, secret, secret[:16], bytes.fromhex(secret)):
                assert (form.encode() if isinstance(form, str) else form) not in dump
        # Nothing that stands in it opens anything, alone or made to look like a key.
        words = set(dump.decode().replace('"', " ").replace(",", " ").split())
        for word in words:
            for attempt in (word, f"pf_{word}", f"pf_{word}_{word}"):
                async with client_of(rig.planes.public, f"Bearer {attempt}") as client:
                    assert_error(await client.get("/v1/models"), 401)
        for key in rig.keys.values():
            public_id = key.split("_")[1]
            for word in words:
                attempt = f"Bearer pf_{public_id}_{word}"
                async with client_of(rig.planes.public, attempt) as client:
                    assert_error(await client.get("/v1/models"), 401)

    in_rig(check, tmp_path)


def test_a_refusal_costs_the_same_however_much_of_a_key_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hash, one comparison of two digests, in constant time: nothing else is done."""
    calls: list[tuple[str, int, int]] = []
    sha256, compare = hashlib.sha256, hmac.compare_digest

    def counted_hash(data: bytes = b"") -> Any:
        calls.append(("hash", len(data), 0))
        return sha256(data)

    def counted_comparison(left: Any, right: Any) -> bool:
        calls.append(("compare", len(left), len(right)))
        return compare(left, right)

    async def check(rig: Rig) -> None:
        key = rig.keys["acme"]
        attempts = [
            # Right up to some place, from nowhere to all but the last digit.
            *(key[:length] + _other(key[length:]) for length in range(3, len(key), 4)),
            key[:-1] + _other(key[-1]),
        ]
        attempts = [text for text in attempts if text[19] == "_"]
        assert len(attempts) > 15
        async with client_of(rig.planes.public) as client:
            seen = set()
            with monkeypatch.context() as patch:
                patch.setattr(hashlib, "sha256", counted_hash)
                patch.setattr(hmac, "compare_digest", counted_comparison)
                for text in attempts:
                    calls.clear()
                    headers = {"authorization": f"Bearer {text}"}
                    response = await client.get("/v1/models", headers=headers)
                    seen.add((tuple(calls), response.text))
                    assert response.status_code == 401
        # The same calls of the same sizes and the same words, for all of them.
        [(cost, _)] = seen
        assert cost == (("hash", len(key), 0), ("compare", 64, 64))

    in_rig(check, tmp_path)


def _other(text: str) -> str:
    """Return as many hexadecimal digits, every one of them another."""
    return "".join(
        "_" if digit == "_" else f"{(int(digit, 16) + 1) % 16:x}" for digit in text
    )


# -- T15: every way in ---------------------------------------------------------------------


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    return {
        (method, str(context.path))
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
    }


#: Every route of the public plane, and a body that it takes.
_ROUTES: dict[tuple[str, str], Any] = {
    ("GET", "/health"): None,
    ("GET", "/openapi.json"): None,
    ("HEAD", "/openapi.json"): None,
    ("GET", "/v1/models"): None,
    ("GET", "/v1/models/{name:path}"): None,
    ("POST", "/tokenize"): {"prompt": "x"},
    ("POST", TEXT): text_body("x", max_tokens=1),
    ("POST", CHAT): chat_body("x", max_tokens=1),
    ("POST", "/v1/files"): {},
    ("DELETE", "/v1/files/{file_id}"): None,
}
#: What a good key gets where the body names nothing that is there, or holds no file.
_STATUS = {("POST", "/v1/files"): 415, ("DELETE", "/v1/files/{file_id}"): 404}


def test_every_route_and_every_credential(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        assert routes_of(rig.planes.public) == set(_ROUTES)
        keys = KeyFile(tmp_path / "keys.json")
        revoked = keys.create("acme")
        keys.revoke(revoked.entry.public_id)
        foreign = KeyFile(tmp_path / "other.json").create("acme").text
        removed = keys.create("fired").text
        good = f"Bearer {rig.keys['acme']}"
        closed: list[list[str]] = [
            [],
            [""],
            ["Bearer"],
            [rig.keys["acme"]],
            [good.replace("Bearer", "Basic")],
            [f"{good} x"],
            [good, good],
            [good, f"Bearer {rig.keys['globex']}"],
            [rig.token.authorization],
            [f"Bearer {revoked.text}"],
            [f"Bearer {foreign}"],
            [f"Bearer {removed}"],
            [good.upper()],
            [good[:-1]],
            [f"{good}0"],
        ]
        for (method, path), body in _ROUTES.items():
            url = path.replace("{name:path}", MODEL)
            async with client_of(rig.planes.public) as client:
                for values in closed:
                    headers = [("authorization", value) for value in values]
                    response = await client.request(method, url, headers=headers, json=body)
                    wanted = 200 if path == "/health" else 401
                    assert response.status_code == wanted, (method, path, values)
                for tenant in TENANTS:
                    key = {"authorization": f"Bearer {rig.keys[tenant.name]}"}
                    response = await client.request(method, url, headers=key, json=body)
                    wanted = _STATUS.get((method, path), 200)
                    assert response.status_code == wanted, (method, path, response.text)

    in_rig(check, tmp_path)


#: Paths that are no route, however a careless check might read them.
_CROOKED = [
    "//health",
    "/health/",
    "/HEALTH",
    "/health/../v1/models",
    "/health/..%2fv1/models",
    "/%2e%2e/v1/models",
    "/v1/models/../../health",
    "/health;/v1/models",
    "/health%00",
    "/health/live",
    "/docs",
    "/redoc",
    "/metrics",
    "/cache/tree",
    "/cache/whatif",
    "/cache/stats",
    "/cache/runs",
    "/cache/figures",
    "/ui",
    "/ui/app.js",
    "/cache/warm",
    "/cache/reset",
    "/model/swap",
    "/model/reload-template",
    "/adapters",
    "/queue",
    "/requests/x/timing",
]


def test_no_crooked_path_comes_past_the_gate(
    open_server: tuple[ServerProcess, str],
) -> None:
    server, key = open_server
    port = httpx2.URL(str(server.ready["public_url"])).port
    assert port is not None
    for path in _CROOKED:
        for method in ("GET", "POST", "OPTIONS", "TRACE", "PUT"):
            assert status_of(port, method, path) == 401, path
            status = status_of(port, method, path, f"authorization: Bearer {key}\r\n")
            # What follows a model's name is part of it, and no such model is there.
            assert status in (404, 405, 415), (method, path, status)
    # A page of somebody else's is never let in by the browser either.
    more = "origin: http://evil.example\r\naccess-control-request-method: POST\r\n"
    answer = exchange(port, "OPTIONS", TEXT, more)
    assert b"access-control" not in answer.lower()


def status_of(port: int, method: str, path: str, more: str = "") -> int:
    return int(exchange(port, method, path, more).split(b" ")[1])


def exchange(port: int, method: str, path: str, more: str = "") -> bytes:
    """Send a request exactly as written, and return all that comes back."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{more}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode())
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return found


# -- T16: limits ---------------------------------------------------------------------------

_POSTS = {
    "public": [TEXT, CHAT, "/tokenize"],
    "admin": [
        "/cache/warm",
        "/cache/lookup",
        "/cache/reset",
        "/model/swap",
        "/model/reload-template",
        "/adapters",
    ],
}


def test_every_route_of_both_planes_is_bounded_alike(tmp_path: Path) -> None:
    config = ServerConfig(max_body_bytes=20_000)

    async def check(rig: Rig) -> None:
        clients = {"public": rig.public("acme"), "admin": rig.admin()}
        for plane, paths in _POSTS.items():
            async with clients[plane] as client:
                for path in paths:
                    for body, status in (
                        # One byte less is read, and is no JSON.
                        (b" " * 19_999, 400),
                        (b" " * 20_000, 413),
                        (b" " * 20_001, 413),
                        # Refused before anything would read it.
                        (b'{"' * 10_000, 413),
                        (b"[" * 10_000, 400),
                        (b'{"a":' * 3_000, 400),
                        (b'{"a":' + b"[" * 9_990 + b"]" * 9_990 + b"}", 400),
                    ):
                        response = await client.post(path, content=body, headers=_JSON)
                        message = assert_error(response, status)
                        if status == 413:
                            assert "20000 bytes" in message
                    deep: Any = "x"
                    for _ in range(65):
                        deep = [deep]
                    response = await client.post(path, json={"prompt": deep})
                    assert "64 levels" in assert_error(response, 400)

    in_rig(check, tmp_path, config)


_OVER: list[dict[str, Any]] = [
    {"n": 9},
    {"n": 10**9},
    {"max_tokens": 4097},
    {"max_tokens": 10**18},
    {"stop": ["a"] * 17},
    {"stop": ["a" * 1025]},
    {"stop_token_ids": [1] * 1025},
    {"logit_bias": {str(token): 1 for token in range(1025)}},
    {"logprobs": 6},
    {"logprobs": True, "top_logprobs": 21},
    {"best_of": 10**9},
]


def test_what_is_over_a_cap_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        async with rig.public("acme") as client:
            for fields in _OVER:
                for path, body in ((TEXT, text_body("x")), (CHAT, chat_body("x"))):
                    bad = {**body, **fields}
                    assert_error(await client.post(path, json=bad), 400)
        async with rig.admin() as admin:
            many = {"tenant": "acme", "prompt": ["x"] * 257}
            for path in ("/cache/warm", "/cache/lookup"):
                assert_error(await admin.post(path, json=many), 400)
            for query in ("max_nodes=10001", "depth=10001", "max_nodes=0", "depth=-1"):
                assert_error(await admin.get(f"/cache/tree?{query}"), 400)
        assert rig.engine.counters.num_steps == 0
        assert rig.engine.cache.counts.free == rig.engine.cache.num_blocks

    in_rig(check, tmp_path)


def test_a_thousand_aborted_requests_leave_nothing() -> None:
    scheduler = SchedulerConfig(max_step_tokens=64, max_running=8, max_queued=200)
    rng = random.Random(0)  # noqa: S311 -- a load, not a secret

    async def test() -> None:
        async with public_plane(scheduler=scheduler, num_blocks=96) as plane:
            for batch in range(10):
                calls = []
                for number in range(100):
                    body = text_body(
                        prompt_of(rng, rng.randrange(8, 200)),
                        max_tokens=500,
                        ignore_eos=True,
                        stream=bool(number % 2),
                        cache={"write": bool(number % 3)},
                    )
                    calls.append(start(plane, TEXT, body))
                # Some wait, some are computed, and some have begun to answer.
                for _ in range(batch):
                    await plane.engine.call(Engine.check_invariants)
                for call in calls:
                    call.disconnect()
                for call in calls:
                    await call.wait()
                await plane.assert_nothing_is_held()
            outputs = [output for _, output in plane.watcher.outputs]
            assert len(outputs) == 1000
            assert {output.finish_reason.value for output in outputs} == {"aborted"}
            assert len({output.request_id for output in outputs}) == 1000
            assert any(output.miss_reason is None for output in outputs)
            assert any(output.token_ids for output in outputs)
            # Everything is there for the next one.
            reply = await plane.complete(prompt_of(rng, 1200), max_tokens=2)
            assert reply["usage"]["completion_tokens"] == 2
            await plane.assert_nothing_is_held()

    run(test)
