"""A server to be soaked: a process of its own, which reports on itself when it is asked.

Both planes are served as ``prefold serve`` does it, over a runner of no weights. Each
line on standard input is answered with one line of JSON on standard output; a signal
ends it. What the report says of requests comes from the places that tell the metrics,
by request, so that the two can be held against each other.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from starlette.types import ASGIApp, Receive, Scope, Send

from prefold.blocks.table import BlockCopy
from prefold.cache import PrefixCache
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.batch import StepPlan
from prefold.engine.config import EngineConfig, ModelLimits, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.parts import EngineParts
from prefold.engine.request import RequestOutput
from prefold.engine.sampler import Sampler
from prefold.server.admin import make_admin_app
from prefold.server.config import ServerConfig, TenantConfig, tenant_by_domain
from prefold.server.credentials import AdminToken, Authenticator
from prefold.server.keys import KeyFile
from prefold.server.limits import TenantLimits
from prefold.server.listen import listen, url_of
from prefold.server.logs import set_up_logging
from prefold.server.metrics import Metrics
from prefold.server.observer import ExchangeId
from prefold.server.permits import Permits
from prefold.server.planes import Planes, run_planes
from prefold.server.public import make_public_app
from prefold.server.served_model import ServedModel
from support.fingerprints import make_fingerprint
from support.sessions import BLOCK_SIZE, CHAT_TEMPLATE, ChainRunner
from support.tiny_models import VOCAB_SIZE, make_tokenizer

MODEL = "chain"
TENANTS = ("acme", "globex")

#: A pool that a few requests fill.
NUM_BLOCKS = 48
MAX_MODEL_LEN = 1024
MAX_BODY_BYTES = 50_000
SCHEDULER = SchedulerConfig(max_step_tokens=32, max_running=8, max_queued=26)

#: So that clients can leave in the middle of things.
_STEP_S = 0.002


class SlowRunner:
    """A chain runner whose steps take their time."""

    def __init__(self, runner: ChainRunner) -> None:
        self._runner = runner

    def execute(self, plan: StepPlan) -> torch.Tensor:
        time.sleep(_STEP_S)
        return self._runner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._runner.copy_blocks(copies)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What became of every request.

    Attributes:
        exchanges: Id and status of each answer; 499 where nobody was left to answer.
        outputs: Id, end, whether it was ever admitted, and tokens of each sequence.
        num_open: Requests that the planes have not done with.
    """

    exchanges: list[tuple[str, int]] = field(default_factory=list)
    outputs: list[tuple[str, str, bool, int]] = field(default_factory=list)
    num_open: int = 0


class LedgerMetrics(Metrics):
    """Metrics that also write down which request each output belongs to."""

    ledger: Ledger

    def on_output(self, request: ExchangeId, output: RequestOutput, *, prompt: int) -> None:
        super().on_output(request, output, prompt=prompt)
        was_admitted = output.miss_reason is not None
        self.ledger.outputs.append(
            (request.text, output.finish_reason.value, was_admitted, len(output.token_ids))
        )


class LedgerHandler(logging.Handler):
    """Takes id and status out of the one line that each request leaves in the log."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO and isinstance(record.args, tuple):
            request_id, _, _, status, *_ = record.args
            self._ledger.exchanges.append((str(request_id), int(str(status))))


class OpenRequests:
    """Counts the requests under way."""

    def __init__(self, app: ASGIApp, *, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ledger.num_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._ledger.num_open -= 1


def make_parts() -> EngineParts:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    letters = [tokenizer.get_vocab()[letter] for letter in "abcdefghijklmno"]
    return EngineParts(
        cache=PrefixCache(
            num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, clock=time.monotonic
        ),
        runner=SlowRunner(ChainRunner(NUM_BLOCKS, letters)),
        sampler=Sampler(VOCAB_SIZE),
        fingerprint=make_fingerprint(block_size=BLOCK_SIZE),
        tokenizer=tokenizer,
    )


class Soaked:
    """The planes, and everything that a report looks at."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger()
        logging.getLogger("prefold.server.exchange").addHandler(LedgerHandler(self.ledger))
        parts = make_parts()
        tenants = [TenantConfig(name=name, max_concurrent=18) for name in TENANTS]
        metrics = LedgerMetrics(tenants=tenant_by_domain(tenants), cost=parts.cache.cost)
        metrics.ledger = self.ledger
        limits = ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=MAX_MODEL_LEN)
        model = ServedModel(
            name=MODEL,
            created=1,
            tokenizer=make_tokenizer(),
            limits=limits,
            fingerprint=parts.fingerprint,
        )
        self.engine = AsyncEngine(
            Engine(parts, EngineConfig(limits=limits, scheduler=SCHEDULER), metrics)
        )
        self.limits = TenantLimits(max_queued=SCHEDULER.max_queued)
        self.config = ServerConfig(
            port=0,
            admin_port=0,
            max_body_bytes=MAX_BODY_BYTES,
            max_queued=SCHEDULER.max_queued,
        )
        key_file = KeyFile(directory / "keys.json")
        self.keys = {name: key_file.create(name).text for name in TENANTS}
        self.token = AdminToken.generate()
        authenticator = Authenticator(tenants, key_file)
        permits = Permits(authenticator)
        public = make_public_app(
            self.engine,
            model,
            permits,
            self.limits,
            self.config,
            metrics,
        )
        public.add_middleware(OpenRequests, ledger=self.ledger)
        admin = make_admin_app(
            self.engine, model, self.token, metrics, self.config, permits
        )
        self.planes = Planes(
            engine=self.engine, public=public, admin=admin, authenticator=authenticator
        )

    async def report(self) -> dict[str, Any]:
        """Check everything that can be checked, and say what is held."""

        def look(engine: Engine) -> dict[str, Any]:
            engine.check_invariants()
            engine.cache.check_invariants()
            counts = engine.cache.counts
            return {
                "open": engine.num_open,
                "private": counts.private,
                "shared": counts.shared,
                "free": counts.free,
                "idle": counts.idle,
                "leases": engine.cache.snapshot().num_leases,
                "preemptions": engine.counters.num_preemptions,
            }

        found = await self.engine.call(look)
        self.limits.check_invariants()
        return {
            **found,
            "tickets": sum(self.limits.num_open(name) for name in TENANTS),
            "waiting_tickets": sum(self.limits.num_waiting(name) for name in TENANTS),
            "open_exchanges": self.ledger.num_open,
            "exchanges": self.ledger.exchanges,
            "outputs": self.ledger.outputs,
            "rss": resident_bytes(),
        }


def resident_bytes() -> int | None:
    """Return the memory that is really in use; None where that cannot be known."""
    gc.collect()
    try:
        # What was freed goes back, so that only what is held counts.
        ctypes.CDLL(None).malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, AttributeError):
        return None
    return pages * 4096


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(message)}\n")
    sys.stdout.flush()


async def answer(soaked: Soaked) -> None:
    try:
        say(await soaked.report())
    except Exception as error:  # noqa: BLE001 -- whoever asked is told
        say({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    torch.set_num_threads(1)
    set_up_logging()
    soaked = Soaked(Path(sys.argv[1]))
    tasks: set[asyncio.Task[None]] = set()
    with listen(soaked.config) as listeners:

        def read_line() -> None:
            if not sys.stdin.readline():
                asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
                return
            task = asyncio.create_task(answer(soaked))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def on_started() -> None:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), read_line)
            say(
                {
                    "public": url_of(listeners.public),
                    "admin": url_of(listeners.admin),
                    "token": soaked.token.authorization,
                    "keys": soaked.keys,
                }
            )

        asyncio.run(
            run_planes(soaked.planes, listeners, drain_s=5.0, on_started=on_started)
        )


if __name__ == "__main__":
    main()
