"""Serving: what the server adds to the engine, and what clients see under load.

It starts a server of its own, on the demo model or another, and measures three things
with the load driver of ``prefold bench serving``:

- ``overhead``: the client's time to first token less the engine's own time of the same
  request, over requests that hit 1,024 tokens and compute 32; the median is promised to
  be at most 10 ms;
- ``scenarios``: a shared prefix, conversations and unique prompts;
- ``tpot``: time per output token for 1, 4 and 16 clients while 25, 75 and 100 % of the
  blocks are occupied, with the cache on and off. Clients' prompts are new ones, so that
  what differs between rows is bookkeeping and eviction, not what is reused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from prefold.cli.bench_client import Answer, BenchClient, Target
from prefold.cli.bench_load import make_conversations, run_load
from prefold.cli.bench_options import Endpoint, LoadOptions, ScenarioName
from prefold.cli.bench_summary import Distribution, distribution, summarize
from prefold.server.credentials import AdminToken

#: What the project promises, in seconds.
OVERHEAD_BOUND_S = 0.010

#: Token ids that every vocabulary has, and that are special in none we know.
_TOKEN_IDS = range(40, 240)

_CACHE_OFF = {"cache": {"read": False, "write": False}}
_FILL_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server, as its clients see it."""

    target: Target
    admin_url: str
    authorization: str


def main() -> int:
    args = _arguments()
    report: dict[str, object] = {}
    for part in args.parts:
        # Each begins with an empty pool; what a reset drops stays occupied until needed.
        with _server(args) as server:
            report["model"] = server.target.model
            report[part] = asyncio.run(_measure(part, args, server))
    _show(report, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the server under load.")
    parser.add_argument("--model", help="directory or hub id; the demo model by default")
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=["overhead", "scenarios", "tpot"],
        default=["overhead", "scenarios", "tpot"],
    )
    parser.add_argument("--rounds", type=int, default=200, help="requests of overhead")
    parser.add_argument("--shared", type=int, default=1024, help="cached tokens of a hit")
    parser.add_argument("--suffix", type=int, default=32, help="new tokens of a prompt")
    parser.add_argument("--requests", type=int, default=16, help="of each scenario")
    parser.add_argument("--concurrency", type=int, default=4, help="in each scenario")
    parser.add_argument("--shared-words", type=int, default=400, help="in scenarios")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--occupied", type=int, nargs="+", default=[25, 75, 100])
    parser.add_argument("--reply-tokens", type=int, default=24)
    parser.add_argument("--cache-blocks", type=int, default=768)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[Server]:
    """Start a server on free ports, and end it."""
    command = [sys.executable, "-m", "prefold.cli.main", "serve"]
    if args.model:
        command.append(args.model)
    command += ["--port", "0", "--admin-port", "0", "--json"]
    command += ["--cache-blocks", str(args.cache_blocks)]
    if args.threads:
        command += ["--threads", str(args.threads)]
    with tempfile.TemporaryDirectory() as directory:
        token_file = Path(directory) / "admin_token"
        environment = {
            **os.environ,
            "PREFOLD_ADMIN_TOKEN_FILE": str(token_file),
            # An empty file: whatever configuration lies about here is not measured.
            "PREFOLD_CONFIG": str(Path(directory) / "prefold.toml"),
        }
        (Path(directory) / "prefold.toml").touch()
        process = subprocess.Popen(  # noqa: S603 -- our own program
            command, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            assert process.stdout is not None  # noqa: S101 -- a pipe was asked for
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the server did not start")
            ready = json.loads(line)
            yield Server(
                target=Target(
                    base_url=f"{ready['public_url']}/v1",
                    model=ready["model"],
                    endpoint=Endpoint.COMPLETIONS,
                    extra={"ignore_eos": True},
                ),
                admin_url=ready["admin_url"],
                authorization=AdminToken.load(token_file).authorization,
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


async def _measure(part: str, args: argparse.Namespace, server: Server) -> object:
    generator = random.Random(args.seed)  # noqa: S311 -- prompts, not secrets
    async with httpx2.AsyncClient(
        base_url=server.admin_url,
        headers={"authorization": server.authorization},
        timeout=600.0,
        trust_env=False,
    ) as admin:
        match part:
            case "overhead":
                return await _measure_overhead(args, server, admin, generator)
            case "scenarios":
                return await _measure_scenarios(args, server, admin)
            case _:
                return await _measure_tpot(args, server, admin, generator)


# -- overhead --------------------------------------------------------------------------


async def _measure_overhead(
    args: argparse.Namespace,
    server: Server,
    admin: httpx2.AsyncClient,
    generator: random.Random,
) -> dict[str, object]:
    shared = _fresh(generator, args.shared)
    await _warm(admin, shared)
    overheads, clients, engines = [], [], []
    async with BenchClient(server.target, max_connections=1) as client:
        for number in range(args.rounds + 1):
            # One token: a second one could be waited for, to complete a character.
            prompt = shared + _fresh(generator, args.suffix)
            answer = await client.ask(prompt, 1)
            ours = _first_token_of(answer)
            response = await admin.get(f"/requests/{answer.request_id}/timing")
            response.raise_for_status()
            [choice] = response.json()["choices"]
            if choice["cached_tokens"] < args.shared - 16:
                raise SystemExit("a request did not hit: what was timed is not a hit")
            # The first round opens the connection.
            if number:
                overheads.append(ours - choice["ttft_s"])
                clients.append(ours)
                engines.append(choice["ttft_s"])
    spread = distribution(overheads)
    if spread is None:
        raise SystemExit("there were no rounds")
    return {
        "rounds": args.rounds,
        "shared_tokens": args.shared,
        "suffix_tokens": args.suffix,
        "client_ttft_s": _numbers(distribution(clients)),
        "engine_ttft_s": _numbers(distribution(engines)),
        "overhead_s": _numbers(spread),
        "bound_s": OVERHEAD_BOUND_S,
        "holds": spread.p50 <= OVERHEAD_BOUND_S,
    }


def _first_token_of(answer: Answer) -> float:
    if answer.error is not None or answer.ttft_s is None:
        raise SystemExit(f"a request failed: {answer.error}")
    return answer.ttft_s


# -- scenarios -------------------------------------------------------------------------


async def _measure_scenarios(
    args: argparse.Namespace, server: Server, admin: httpx2.AsyncClient
) -> list[dict[str, object]]:
    rows = []
    for scenario in ScenarioName:
        await _post(admin, "/cache/reset", {})
        load = LoadOptions(
            scenario=scenario,
            requests=args.requests,
            concurrency=args.concurrency,
            shared_words=args.shared_words,
            own_words=25,
            turns=4,
            max_tokens=args.reply_tokens,
            seed=args.seed,
        )
        began_at = time.perf_counter()
        async with BenchClient(server.target, max_connections=args.concurrency) as client:
            answers = await run_load(
                client,
                make_conversations(load),
                concurrency=args.concurrency,
                max_tokens=args.reply_tokens,
            )
        summary = summarize(answers, time.perf_counter() - began_at)
        rows.append({"scenario": scenario.value, **summary.to_json()})
    return rows


# -- time per output token -------------------------------------------------------------


async def _measure_tpot(
    args: argparse.Namespace,
    server: Server,
    admin: httpx2.AsyncClient,
    generator: random.Random,
) -> list[dict[str, object]]:
    rows = []
    for percent in sorted(args.occupied):
        # What is written only adds up, so each level needs what it lacks, and the rows
        # without the cache, which write nothing, come first.
        for is_on in (False, True):
            for num_clients in args.clients:
                await _fill(admin, generator, percent / 100)
                rows.append(
                    await _tpot_row(args, server, admin, generator, num_clients, is_on)
                )
                rows[-1]["wanted_percent"] = percent
    return rows


async def _tpot_row(
    args: argparse.Namespace,
    server: Server,
    admin: httpx2.AsyncClient,
    generator: random.Random,
    num_clients: int,
    is_on: bool,  # noqa: FBT001 -- a value of the table
) -> dict[str, object]:
    occupied = await _occupied_share(admin)
    before = await _stats(admin)
    extra = {**server.target.extra, **({} if is_on else _CACHE_OFF)}
    target = replace(server.target, extra=extra)
    prompts = [_fresh(generator, args.suffix) for _ in range(num_clients)]
    async with BenchClient(target, max_connections=num_clients) as client:
        answers = await asyncio.gather(
            *(client.ask(prompt, args.reply_tokens) for prompt in prompts)
        )
    for answer in answers:
        _first_token_of(answer)
    after = await _stats(admin)
    return {
        "clients": num_clients,
        "cache": "on" if is_on else "off",
        "occupied_share": occupied,
        "evicted_blocks": after["num_evicted_blocks"] - before["num_evicted_blocks"],
        "tpot_s": _numbers(distribution(answer.tpot_s for answer in answers)),
    }


async def _fill(admin: httpx2.AsyncClient, generator: random.Random, share: float) -> None:
    """Warm prompts that nobody asks for, until that share of the blocks is occupied."""
    stats = await _stats(admin)
    size, total = stats["block_size"], stats["blocks"]["total"]
    num_missing = int(share * total) - (total - stats["blocks"]["free"])
    while num_missing > 0:
        num_blocks = min(num_missing, max(1, _FILL_TOKENS // size))
        await _warm(admin, _fresh(generator, num_blocks * size))
        num_missing -= num_blocks


async def _occupied_share(admin: httpx2.AsyncClient) -> float:
    blocks = (await _stats(admin))["blocks"]
    return float(1 - blocks["free"] / blocks["total"])


# -- calls -----------------------------------------------------------------------------


def _fresh(generator: random.Random, length: int) -> list[int]:
    return generator.choices(_TOKEN_IDS, k=length)


async def _warm(admin: httpx2.AsyncClient, prompt: list[int]) -> None:
    await _post(admin, "/cache/warm", {"prompt": prompt})


async def _post(admin: httpx2.AsyncClient, path: str, body: dict[str, object]) -> None:
    (await admin.post(path, json=body)).raise_for_status()


async def _stats(admin: httpx2.AsyncClient) -> dict[str, Any]:
    response = await admin.get("/cache/stats")
    response.raise_for_status()
    document: dict[str, Any] = response.json()
    return document


def _numbers(spread: Distribution | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _show(report: dict[str, object], *, as_json: bool) -> None:
    print(json.dumps(report, indent=None if as_json else 2))


if __name__ == "__main__":
    sys.exit(main())
