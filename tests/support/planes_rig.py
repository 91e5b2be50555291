"""Planes for tests: both applications over a real engine and a runner of no weights.

Requests are carried in the process, without a socket. Everything happens on the loop of
the test, apart from the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from prefold.cache import PrefixCache
from prefold.engine.batch import Runner
from prefold.engine.config import ModelLimits, SchedulerConfig
from prefold.engine.engine import Engine
from prefold.engine.parts import EngineParts
from prefold.engine.sampler import Sampler
from prefold.server.config import (
    CacheConfig,
    PrefoldConfig,
    ServerConfig,
    TenantConfig,
)
from prefold.server.credentials import AdminToken
from prefold.server.keys import KeyFile
from prefold.server.limits import TenantLimits
from prefold.server.planes import Planes
from prefold.server.serve import make_planes, open_doors
from prefold.server.served_model import ServedModel
from support.fingerprints import make_fingerprint
from support.sessions import BLOCK_SIZE, CHAT_TEMPLATE, ChainRunner
from support.tiny_models import VOCAB_SIZE, make_tokenizer

MODEL = "chain"


@dataclass(frozen=True, slots=True, kw_only=True)
class RigSettings:
    """What a test may want otherwise."""

    directory: Path
    tenants: tuple[TenantConfig, ...] = ()
    server: ServerConfig = field(default_factory=ServerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    num_blocks: int = 1024
    max_model_len: int = 4096
    wrap_runner: Callable[[ChainRunner], Runner] = lambda runner: runner
    cache: PrefixCache | None = None
    #: What ``[cache]`` says, apart from sizes; without effect on a cache that is given.
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    clock: Callable[[], float] = time.monotonic


class Rig:
    """Both planes, and clients of them.

    Attributes:
        keys: An API key for each tenant.
    """

    def __init__(
        self,
        planes: Planes,
        token: AdminToken,
        keys: Mapping[str, str],
        runner: ChainRunner,
        limits: TenantLimits,
    ) -> None:
        self.planes = planes
        self.token = token
        self.keys = keys
        self.runner = runner
        self.limits = limits

    @property
    def engine(self) -> Engine:
        return self.planes.engine.engine

    def public(self, tenant: str | None = None) -> httpx2.AsyncClient:
        """Return a client of the public plane that speaks for a tenant."""
        key = None if tenant is None else f"Bearer {self.keys[tenant]}"
        return client_of(self.planes.public, key)

    def admin(self) -> httpx2.AsyncClient:
        """Return a client of the admin plane that has its token."""
        return client_of(self.planes.admin, self.token.authorization)

    async def samples(self) -> dict[str, float]:
        """Return what ``/metrics`` shows: values by name and labels."""
        async with self.admin() as admin:
            response = await admin.get("/metrics")
        assert response.status_code == 200
        return parse_metrics(response.text)


@asynccontextmanager
async def open_rig(settings: RigSettings) -> AsyncIterator[Rig]:
    """Make both planes, start the engine, and stop it in the end."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    letters = [tokenizer.get_vocab()[letter] for letter in "abcdefghijklmno"]
    runner = ChainRunner(settings.num_blocks, letters)
    fingerprint = make_fingerprint(block_size=BLOCK_SIZE)
    config, keys = _configure(settings)
    parts = EngineParts(
        cache=settings.cache
        or PrefixCache(
            num_blocks=settings.num_blocks,
            block_size=BLOCK_SIZE,
            clock=settings.clock,
            policy=config.cache.policy,
            quotas=config.quotas(),
        ),
        runner=settings.wrap_runner(runner),
        sampler=Sampler(VOCAB_SIZE),
        fingerprint=fingerprint,
        tokenizer=tokenizer,
    )
    model = ServedModel(
        name=MODEL,
        created=1,
        tokenizer=tokenizer,
        limits=ModelLimits(vocab_size=VOCAB_SIZE, max_model_len=settings.max_model_len),
        fingerprint=fingerprint,
    )
    doors = open_doors(config)
    limits = TenantLimits(max_queued=config.server.max_queued)
    planes = make_planes(config, doors, parts, model, limits)
    await planes.engine.start()
    try:
        yield Rig(planes, doors.token, keys, runner, limits)
    finally:
        await planes.engine.stop(drain_s=0.0)


def _configure(settings: RigSettings) -> tuple[PrefoldConfig, Mapping[str, str]]:
    key_path = settings.directory / "keys.json"
    key_file = KeyFile(key_path)
    keys = {tenant.name: key_file.create(tenant.name).text for tenant in settings.tenants}
    token_path = settings.directory / "admin_token"
    config = PrefoldConfig(
        server=replace(settings.server, key_file=key_path, admin_token_file=token_path),
        engine=settings.scheduler,
        cache=settings.cache_config,
        tenants=settings.tenants,
    )
    return config, keys


def client_of(app: ASGIApp, authorization: str | None = None) -> httpx2.AsyncClient:
    """Return a client of an application in this process."""
    headers = {} if authorization is None else {"authorization": authorization}
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app),
        base_url="http://127.0.0.1:8000",
        headers=headers,
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Return the values of a scrape by name and labels, as Prometheus writes them."""
    return {
        _name(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def _name(name: str, labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{shown}}}" if shown else name


def total(samples: Mapping[str, float], name: str) -> float:
    """Return the sum over all labels of a metric."""
    return sum(value for key, value in samples.items() if key.split("{")[0] == name)


def assert_error(response: httpx2.Response, status: int) -> str:
    """Assert that an answer is an error in OpenAI's shape; return its message."""
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    if status in (429, 503):
        assert int(response.headers["retry-after"]) >= 1
    message = document["error"]["message"]
    assert isinstance(message, str)
    assert message
    return message
