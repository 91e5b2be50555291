"""Serve: everything that one ``prefold.toml`` describes, from its ports to its end.

In this order, so that what is wrong shows before anything slow begins: token and key
files, ports, the model, the engine, the planes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from prefold.engine.assembly import Assembly, assemble
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import EngineConfig
from prefold.engine.demo_model import SMOLLM2, SetupProgress
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.engine.parts import EngineParts
from prefold.engine.row_probe import Exactness
from prefold.errors import ConfigError
from prefold.server.admin import make_admin_app
from prefold.server.announcement import Announcement
from prefold.server.config import PrefoldConfig, tenant_by_domain
from prefold.server.credentials import AdminToken, Authenticator, default_token_path
from prefold.server.keys import KeyFile, default_key_path
from prefold.server.limits import TenantLimits
from prefold.server.listen import Listeners, listen, url_of
from prefold.server.logs import set_up_logging
from prefold.server.metrics import Metrics
from prefold.server.permits import Permits
from prefold.server.planes import Planes, run_planes
from prefold.server.public import make_public_app
from prefold.server.served_model import ServedModel
from prefold.server.what_if import LiveWhatIf

#: What a shell reports of a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130


#: A tenth of Python's own.
_SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Who may come in: the secrets of both planes, and where they are kept."""

    token_file: Path
    key_file: Path
    token: AdminToken
    authenticator: Authenticator


def serve(
    config: PrefoldConfig,
    progress: SetupProgress,
    announce: Callable[[Announcement], None],
) -> int:
    """Serve until SIGTERM, which gives 0, or SIGINT, which gives 130.

    Args:
        config: All of it.
        progress: Told about the steps of loading the model.
        announce: Called once, when both planes answer.

    Raises:
        ConfigError: A port is taken, a file or the model cannot be used.
    """
    # Until the event loop answers signals itself, and after it has stopped doing so.
    with _ending_at_once():
        doors = open_doors(config)
        with listen(config.server) as listeners:
            set_up_logging()
            assembly = assemble(config.model.source, model_settings(config), progress)
            model = served_model(assembly, config)
            planes = make_planes(config, doors, assembly.parts, model)
            # What is loaded stays: no collection needs to look through it again.
            gc.freeze()
            # The engine's thread holds the interpreter between its kernels; the loop must
            # not wait ten times its own work before it may send a token.
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
            announcement = _announcement(config, doors, listeners, assembly, model)
            # It holds the model, which must be free to go when another takes its place.
            del assembly
            first = asyncio.run(
                run_planes(
                    planes,
                    listeners,
                    drain_s=config.server.drain_s,
                    on_started=lambda: announce(announcement),
                )
            )
    return 0 if first is signal.SIGTERM else EXIT_INTERRUPTED


def open_doors(config: PrefoldConfig) -> Doors:
    """Read the token and key files, making the token if there is none.

    Raises:
        ConfigError: One of them cannot be used.
    """
    token_file = config.server.admin_token_file or default_token_path()
    key_file = config.server.key_file or default_key_path()
    return Doors(
        token_file=token_file,
        key_file=key_file,
        token=AdminToken.load_or_create(token_file),
        authenticator=Authenticator(
            config.tenants, KeyFile(key_file) if config.tenants else None
        ),
    )


def make_planes(
    config: PrefoldConfig,
    doors: Doors,
    parts: EngineParts,
    model: ServedModel,
    limits: TenantLimits | None = None,
) -> Planes:
    """Put engine, metrics and both applications together.

    Args:
        config: All of it.
        doors: Who may come in.
        parts: Of the engine.
        model: What clients see of it.
        limits: Of the tenants; None makes them.

    Raises:
        ConfigError: An adapter cannot be served.
    """
    scheduler = replace(config.engine, max_queued=config.server.max_queued)
    permits = Permits(doors.authenticator, ttl_s=config.cache.ttl_s)
    metrics = Metrics(
        tenants=tenant_by_domain(doors.authenticator.tenants),
        cost=parts.cache.cost,
        what_if=LiveWhatIf(parts.cache),
        block_size=parts.cache.block_size,
    )
    core = Engine(parts, EngineConfig(limits=model.limits, scheduler=scheduler), metrics)
    load_adapters(core, config.adapters, model.name)
    engine = AsyncEngine(core)
    return Planes(
        engine=engine,
        public=make_public_app(
            engine,
            model,
            permits,
            limits or TenantLimits(max_queued=config.server.max_queued),
            config.server,
            metrics,
            config.images,
        ),
        admin=make_admin_app(engine, model, doors.token, metrics, config.server, permits),
        authenticator=doors.authenticator,
    )


def load_adapters(engine: Engine, adapters: Mapping[str, Path], model_name: str) -> None:
    """Load the adapters to begin with.

    Raises:
        ConfigError: One of them cannot be served, or has the model's name.
    """
    for name, path in adapters.items():
        if name == model_name:
            raise ConfigError(
                f"the adapter {name!r} has the name of the model; rename one of them"
            )
        try:
            engine.adapters.load(name, path)
        except ConfigError as error:
            raise ConfigError(f"the adapter {name!r} cannot be served: {error}") from error


def model_settings(config: PrefoldConfig) -> ModelSettings:
    """Return what the sections ``[model]`` and ``[cache]`` say about loading."""
    model, cache = config.model, config.cache
    return ModelSettings(
        cache_memory=cache.memory,
        cache_blocks=cache.blocks,
        block_size=cache.block_size,
        dtype=model.dtype,
        kv_dtype=cache.kv_dtype,
        max_model_len=model.max_model_len,
        num_threads=model.num_threads,
        device=model.device,
        position_offset=model.position_offset,
        eviction_policy=cache.policy,
        quotas=config.quotas(),
        rehash=model.rehash,
        image_limits=config.images.limits,
    )


def served_model(assembly: Assembly, config: PrefoldConfig) -> ServedModel:
    """Return what clients see of a loaded model."""
    path = Path(assembly.source)
    source = path.resolve().name if path.is_dir() else assembly.source
    mixer = assembly.mixer
    if config.model.source is None:
        source = SMOLLM2.name
    return ServedModel(
        name=config.model.served_name or source,
        created=int(time.time()),
        tokenizer=assembly.loaded.tokenizer,
        limits=assembly.config.limits,
        fingerprint=assembly.parts.fingerprint,
        images=mixer.images,
    )


def _announcement(
    config: PrefoldConfig,
    doors: Doors,
    listeners: Listeners,
    assembly: Assembly,
    model: ServedModel,
) -> Announcement:
    return Announcement(
        public_url=url_of(listeners.public),
        admin_url=url_of(listeners.admin),
        model=model.name,
        cache_tokens=assembly.num_cache_tokens,
        cache_bytes=assembly.cache_bytes,
        exactness=_promise(assembly.exactness),
        token_file=doors.token_file,
        key_file=doors.key_file,
        num_tenants=len(config.tenants),
    )


def _promise(exactness: Exactness) -> str:
    promise = "promised" if exactness.is_exact else "not promised"
    return f"Exactness is {promise}: {exactness.detail}."


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let SIGTERM end the program with 0 while there is nothing to drain yet."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        # An exception may come up anywhere, also where others are turned into something
        # else or passed over, as in a destructor.
        for stream in (sys.stdout, sys.stderr):
            # Unless it is being written to right now.
            with suppress(RuntimeError):
                stream.flush()
        os._exit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
