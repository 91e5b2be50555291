"""A server under clients that do what they like: it answers all, and keeps nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from prefold.engine.config import SchedulerConfig
from prefold.server.config import ServerConfig, TenantConfig
from support.live_server import raw_request
from support.planes_rig import RigSettings, open_rig, parse_metrics
from support.public_plane import PlaneRunner, run, until
from support.soak_server import MAX_BODY_BYTES, MODEL, NUM_BLOCKS, TENANTS
from support.tiny_models import make_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_REQUESTS = 2000 if os.environ.get("PREFOLD_SOAK") else 300
#: So many come first; memory is compared with that after them.
NUM_WARM_UP = 100
NUM_HASTY = 20
NUM_CLIENTS = 32

TEXT = "/v1/completions"
_PATIENCE_S = 60.0

_TOKENIZER = make_tokenizer()
_LETTERS = "abcdefghijklmno"
_LETTER_IDS = [_TOKENIZER.get_vocab()[letter] for letter in _LETTERS]


# -- what clients do -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request, and what its client does with it.

    Attributes:
        leaves: When the client goes away; None to wait for the answer.
        by_reset: Whether it goes by RST; else by FIN.
        patience: Of one that leaves later: seconds, or events of the stream.
        statuses: What the answer may be; one that leaves gets none.
    """

    id: str
    tenant: str | None
    data: bytes
    length: int | None = None
    prompt: tuple[int, ...] = ()
    max_tokens: int = 0
    n: int = 1
    is_streamed: bool = False
    leaves: str | None = None
    by_reset: bool = False
    patience: float = 0.0
    statuses: tuple[int, ...] = (200, 429, 503)


def make_jobs(seed: int, count: int, first: int) -> list[Job]:
    rng = _dice(seed)
    families = [[rng.randrange(256) for _ in range(64)] for _ in range(4)]
    return [_make_job(rng, f"r-{first + i}", families) for i in range(count)]


def _dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 -- a load, not a secret


def _make_job(rng: random.Random, name: str, families: list[list[int]]) -> Job:
    kind = rng.choices(
        ["whole", "stream", "at once", "soon", "streaming", "bad", "oversized"],
        [30, 18, 8, 14, 12, 12, 6],
    )[0]
    tenant = rng.choice(TENANTS)
    if kind == "bad":
        return _make_bad_job(rng, name, tenant)
    if kind == "oversized":
        # More than the model takes, or than the memory holds.
        size, max_tokens = rng.choice([(1024, 5), (3000, 1), (5, 100_000), (800, 1)])
        prompt = tuple(i % 256 for i in range(size))
        data = _body(prompt, max_tokens, 1)
        return Job(id=name, tenant=tenant, data=data, statuses=(400, 429))
    tail = [rng.randrange(256) for _ in range(rng.randrange(8, 80))]
    prompt = (*rng.choice(families), *tail)
    leaves = kind if kind in ("at once", "soon", "streaming") else None
    if leaves == "soon":
        # Computing it takes its time, and nothing of it is cached.
        prompt = tuple(rng.randrange(256) for _ in range(rng.randrange(400, 600)))
    max_tokens = rng.randrange(60, 120) if kind == "streaming" else rng.randrange(1, 40)
    n = rng.choice([1, 1, 1, 2])
    is_streamed = kind in ("stream", "streaming") or (leaves is not None and n == 2)
    return Job(
        id=name,
        tenant=tenant,
        data=_body(prompt, max_tokens, n, is_streamed=is_streamed),
        prompt=prompt,
        max_tokens=max_tokens,
        n=n,
        is_streamed=is_streamed,
        leaves=leaves,
        by_reset=rng.random() < 0.5,
        patience=rng.randrange(1, 6) if kind == "streaming" else 1.2 * rng.random(),
    )


def make_hasty_jobs(first: int) -> list[Job]:
    """Return jobs whose clients leave while their prompt is computed, if all is quiet."""
    rng = _dice(first)
    jobs = []
    for i in range(first, first + NUM_HASTY):
        prompt = tuple(rng.randrange(256) for _ in range(600))
        jobs.append(
            Job(
                id=f"r-{i}",
                tenant=rng.choice(TENANTS),
                data=_body(prompt, 5, 1),
                prompt=prompt,
                max_tokens=5,
                n=1,
                leaves="soon",
                patience=rng.uniform(0.005, 0.04),
            )
        )
    return jobs


def _make_bad_job(rng: random.Random, name: str, tenant: str) -> Job:
    good = json.loads(_body((1, 2, 3), 1, 1))
    bad: list[tuple[bytes, tuple[int, ...]]] = [
        (b"{", (400,)),
        (b'{"prompt": "\xff"}', (400,)),
        (b"[" * 10_000, (400,)),
        (json.dumps({**good, "max_tokens": "many"}).encode(), (400,)),
        (json.dumps({**good, "colour": "blue"}).encode(), (400,)),
        (json.dumps({**good, "prompt": []}).encode(), (400,)),
        (json.dumps({**good, "model": "other"}).encode(), (404,)),
        (b" " * MAX_BODY_BYTES, (413,)),
    ]
    # A tenant at its limit is told so before anything of a body is looked at.
    bad = [(data, (*statuses, 429)) for data, statuses in bad]
    way = rng.randrange(len(bad) + 2)
    if way == len(bad):
        return Job(id=name, tenant=None, data=_body((1,), 1, 1), statuses=(401,))
    if way == len(bad) + 1:
        # It promises more than it sends, and goes.
        return Job(id=name, tenant=tenant, data=b"{", length=999, leaves="at once")
    data, statuses = bad[way]
    return Job(id=name, tenant=tenant, data=data, statuses=statuses)


def _body(
    prompt: tuple[int, ...], max_tokens: int, n: int, *, is_streamed: bool = False
) -> bytes:
    fields = {"model": MODEL, "prompt": list(prompt), "max_tokens": max_tokens, "n": n}
    return json.dumps(
        {**fields, "temperature": 0, "ignore_eos": True, "stream": is_streamed}
    ).encode()


def expected_reply(prompt: tuple[int, ...], max_tokens: int) -> str:
    """Return what the model says, computed from its rule."""
    tokens, text = list(prompt), ""
    for _ in range(max_tokens):
        digest = sum(token * (i % 97 + 1) for i, token in enumerate(tokens))
        text += _LETTERS[digest % len(_LETTERS)]
        tokens.append(_LETTER_IDS[digest % len(_LETTERS)])
    return text


async def perform(job: Job, port: int, keys: dict[str, str]) -> int | None:
    """Carry a job out; return the status, or None of one that left."""
    more = f"x-request-id: {job.id}\r\nconnection: close\r\n"
    if job.tenant is not None:
        more += f"authorization: Bearer {keys[job.tenant]}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw_request(TEXT, job.data, length=job.length, more=more))
        await writer.drain()
        if job.leaves == "soon":
            await asyncio.sleep(job.patience)
        elif job.leaves == "streaming":
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(int(job.patience)):
                await reader.readuntil(b"\n\n")
        if job.leaves is not None:
            return None
        async with asyncio.timeout(_PATIENCE_S):
            answer = await reader.read()
    except (asyncio.IncompleteReadError, ConnectionError):
        assert job.leaves is not None
        return None
    finally:
        _leave(writer, by_reset=job.by_reset and job.leaves is not None)
    return _check_answer(job, answer)


def _leave(writer: asyncio.StreamWriter, *, by_reset: bool) -> None:
    if by_reset:
        linger = struct.pack("ii", 1, 0)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


def _check_answer(job: Job, answer: bytes) -> int:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert status in job.statuses, (job.id, status, body[:300])
    if status != 200:
        assert set(json.loads(body)) == {"error"}
        assert status not in (429, 503) or int(fields[b"retry-after"]) >= 1
        return status
    texts: dict[int, str] = defaultdict(str)
    if job.is_streamed:
        frames = _unchunk(body).decode().split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""], frames[-3:]
        documents = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    else:
        documents = [json.loads(body)]
    for document in documents:
        for choice in document["choices"]:
            texts[choice["index"]] += choice["text"]
    wanted = expected_reply(job.prompt, job.max_tokens)
    assert texts == dict.fromkeys(range(job.n), wanted), job.id
    return status


def _unchunk(body: bytes) -> bytes:
    found = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return found
        found, body = found + body[:length], body[length + 2 :]


async def perform_all(
    jobs: list[Job], port: int, keys: dict[str, str]
) -> dict[str, int | None]:
    waiting = iter(jobs)
    statuses: dict[str, int | None] = {}

    async def client() -> None:
        for job in waiting:
            statuses[job.id] = await perform(job, port, keys)
            if statuses[job.id] in (429, 503):
                # It was told to come back later.
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(client())
    return statuses


# -- the server ----------------------------------------------------------------------------


class SoakServer:
    """The process, and what it says of itself."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.ready = self._read()

    @property
    def port(self) -> int:
        port = urlsplit(str(self.ready["public"])).port
        assert port is not None
        return port

    def report(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        found = self._read()
        assert "error" not in found, found
        return found

    async def report_at_rest(self) -> dict[str, Any]:
        """Return the report of a server that has nothing to do any more."""
        for _ in range(600):
            found = self.report()
            if not (found["open"] or found["open_exchanges"] or found["tickets"]):
                return found
            await asyncio.sleep(0.05)
        pytest.fail("the server does not come to rest")

    def metrics(self) -> dict[str, float]:
        response = httpx2.get(
            f"{self.ready['admin']}/metrics",
            headers={"authorization": self.ready["token"]},
            trust_env=False,
        )
        assert response.status_code == 200
        return parse_metrics(response.text)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server has ended"
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def soak_server(directory: Path) -> Iterator[SoakServer]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (directory / "stderr").open("w") as err:
        process = subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-m", "support.soak_server", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=environment,
        )
    try:
        yield SoakServer(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=_PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=_PATIENCE_S)


# -- the soak ------------------------------------------------------------------------------


def test_a_server_that_is_soaked_keeps_nothing(tmp_path: Path) -> None:
    with soak_server(tmp_path) as server:
        asyncio.run(_soak(server))
    errors = (tmp_path / "stderr").read_text()
    assert "ERROR" not in errors
    assert "Traceback" not in errors


async def _soak(server: SoakServer) -> None:
    jobs: list[Job] = []
    statuses: dict[str, int | None] = {}
    reports = []
    for count in (NUM_WARM_UP, NUM_REQUESTS - NUM_WARM_UP):
        part = make_jobs(len(jobs), count, len(jobs))
        jobs += part
        statuses |= await perform_all(part, server.port, server.ready["keys"])
        report = await server.report_at_rest()
        assert (report["private"], report["shared"], report["leases"]) == (0, 0, 0)
        assert report["free"] + report["idle"] == NUM_BLOCKS
        assert report["waiting_tickets"] == 0
        reports.append(report)
    # Beside others few are in the middle of a prompt just when they leave.
    hasty = make_hasty_jobs(len(jobs))
    jobs += hasty
    for job in hasty:
        statuses[job.id] = await perform(job, server.port, server.ready["keys"])
    last = await server.report_at_rest()
    _reconcile(jobs, statuses, last, server.metrics())
    _check_that_it_was_a_soak(statuses, last)
    if last["rss"] is not None:
        assert last["rss"] <= 1.05 * reports[0]["rss"]
    # It still serves.
    [job] = [job for job in make_jobs(0, 50, 10_000) if job.leaves is None and job.prompt][
        :1
    ]
    assert await perform(job, server.port, server.ready["keys"]) == 200


def _reconcile(
    jobs: list[Job],
    statuses: dict[str, int | None],
    report: dict[str, Any],
    metrics: dict[str, float],
) -> None:
    """Every request ended once, in one way, and is counted once, as that."""
    exchanges: dict[str, list[int]] = defaultdict(list)
    ends: dict[str, list[str]] = defaultdict(list)
    for name, status in report["exchanges"]:
        exchanges[name].append(status)
    for name, reason, _, _ in report["outputs"]:
        ends[name].append(reason)
    assert set(exchanges) | set(ends) <= {job.id for job in jobs}
    for job in jobs:
        seen, status = exchanges[job.id], statuses[job.id]
        if status is None:
            # Of a connection that was reset, nothing may ever have been read.
            assert len(seen) <= 1
            assert len(ends[job.id]) in (0, job.n)
        else:
            assert seen == [status]
            assert len(ends[job.id]) == (job.n if status == 200 else 0)
        if status == 200:
            assert set(ends[job.id]) == {"length"}
    refused = [
        name
        for name, [status, *_] in ((k, v) for k, v in exchanges.items() if v)
        # Who has no key is nobody's request.
        if not ends[name] and status != 401
    ]
    by_end = Counter(reason for _, reason, _, _ in report["outputs"])

    def counted(outcome: str) -> float:
        return metrics[f'prefold_requests_total{{outcome="{outcome}"}}']

    assert counted("finished") == by_end["length"] + by_end["stop"]
    assert counted("aborted") == by_end["aborted"]
    assert counted("failed") == 0
    assert counted("refused") == len(refused)
    assert metrics["prefold_metric_errors_total"] == 0


def _check_that_it_was_a_soak(
    statuses: dict[str, int | None], report: dict[str, Any]
) -> None:
    """All that was to happen did."""
    aborted = [output for output in report["outputs"] if output[1] == "aborted"]
    assert any(not was_admitted for _, _, was_admitted, _ in aborted)  # queued
    assert any(was_admitted and not tokens for _, _, was_admitted, tokens in aborted)
    assert any(tokens for *_, tokens in aborted)  # streaming
    seen = Counter(statuses.values())
    assert {None, 200, 400, 401, 404, 413} <= set(seen)
    assert seen[429] + seen[503] > 0
    assert seen[200] > NUM_REQUESTS / 5
    assert report["preemptions"] > 0


# -- one that is refused -------------------------------------------------------------------


def test_choices_without_room_are_refused_together_and_counted_once(tmp_path: Path) -> None:
    runner = PlaneRunner(64)
    settings = RigSettings(
        directory=tmp_path,
        tenants=(TenantConfig(name="acme"),),
        scheduler=SchedulerConfig(max_step_tokens=64, max_running=1),
        server=ServerConfig(max_queued=2),
        num_blocks=64,
        wrap_runner=lambda _: runner,
    )

    async def test() -> None:
        async with open_rig(settings) as rig, rig.public("acme") as client:

            async def ask(n: int) -> httpx2.Response:
                body = {"model": MODEL, "prompt": "x", "max_tokens": 2, "n": n}
                return await client.post(TEXT, json=body)

            runner.is_open.clear()
            first = asyncio.create_task(ask(1))
            await until(lambda: rig.engine.counters.num_admissions == 1)
            # Two may wait, so of these the first finds room and the others do not.
            rest = []
            for n in (2, 2, 1):
                rest.append(asyncio.create_task(ask(n)))
                await until(lambda: len(rig.planes.engine._commands) == len(rest))
            runner.is_open.set()
            statuses = [(await call).status_code for call in (first, *rest)]
            assert statuses == [200, 200, 503, 503]
            await until(lambda: not rig.engine.num_open)
            samples = await rig.samples()
            found = [
                samples[f'prefold_requests_total{{outcome="{outcome}"}}']
                for outcome in ("finished", "refused", "aborted", "failed")
            ]
            assert found == [3, 2, 0, 0]

    run(test)
