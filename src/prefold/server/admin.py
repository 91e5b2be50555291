"""The admin plane: what operators may see and do, behind a token of its own.

| route | does |
|---|---|
| ``GET /health/live``, ``/health/ready`` | for whoever restarts and balances; no token |
| ``GET /health`` | the same in a word |
| ``GET /metrics`` | for Prometheus |
| ``GET /ui``, ``/ui/*`` | the page, which holds no data; no token |
| ``GET /cache/stats``, ``/cache/tree``, ``/queue`` | figures of this moment |
| ``GET /cache/whatif`` | what other cache sizes would hit and save |
| ``GET /cache/worth`` | what caching saves and holds, and whether it pays |
| ``GET /cache/figures`` | those that the page shows |
| ``GET /cache/runs``, ``/cache/runs/{id}`` | the cached runs, a few at a time |
| ``POST /cache/search`` | those of a domain, or that a prompt leads to |
| ``POST /cache/runs/{id}/invalidate``, ``/approve`` | what to do to one |
| ``POST /cache/pin``, ``/unpin`` | what no eviction takes |
| ``POST /cache/lookup`` | what a prompt would hit |
| ``POST /cache/warm`` | computes a prompt ahead of its requests |
| ``POST /cache/approve``, ``/withdraw``, ``GET /cache/approvals`` | shared prefixes |
| ``POST /cache/invalidate``, ``/reset`` | drop what is cached, with a receipt |
| ``DELETE /domains/{path}`` | revokes a domain: keys, requests and what is cached |
| ``POST /model/swap`` | another model, or the next version of this one |
| ``POST /model/reload-template`` | the chat template as it is on disk now |
| ``GET /adapters``, ``POST /adapters``, ``DELETE /adapters/{name}`` | LoRA adapters |
| ``GET /cache/misses``, ``/cache/explain/{request_id}`` | why requests missed |
| ``GET /requests/{request_id}/timing`` | the engine's own times of a recent request |

The token is asked for before routing, so that a route added later is behind it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from prefold.advisor.what_if import WhatIf
from prefold.cache import ListingBounds
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.engine import Engine
from prefold.errors import EngineStoppedError
from prefold.server import operations
from prefold.server.adapter_admin import adapters_router
from prefold.server.admin_protocol import (
    HealthReply,
    LookupReply,
    PromptRequest,
    QueueReply,
    StatsReply,
    TimingReply,
    TreeReply,
    WarmReply,
    WarmRequest,
)
from prefold.server.attendance import while_wanted
from prefold.server.body import BodyReader, body_size
from prefold.server.config import ServerConfig, TenantConfig, tenant_by_domain
from prefold.server.credentials import AdminToken, AuthenticationError
from prefold.server.errors import HttpError
from prefold.server.exchange import ExchangeLayer
from prefold.server.faults import install_fault_handlers
from prefold.server.figures import PageFacts
from prefold.server.json_shape import JsonLimits
from prefold.server.metrics import CONTENT_TYPE, Metrics
from prefold.server.miss_operations import Explainer
from prefold.server.miss_routes import misses_router
from prefold.server.model_admin import model_router
from prefold.server.observer import Plane
from prefold.server.page import load_page, page_router
from prefold.server.permits import Permits
from prefold.server.prompt_reader import PromptReader
from prefold.server.protocol import ERROR_RESPONSES
from prefold.server.runs import TextMaker
from prefold.server.runs_routes import figures_router, pins_router, runs_router
from prefold.server.served_model import CurrentModel, PerModel, ServedModel
from prefold.server.sharing_routes import approvals_router, invalidation_router
from prefold.server.snapshot import EngineSnapshot, take_snapshot
from prefold.server.what_if_routes import what_if_router
from prefold.server.worth_routes import worth_router

#: Asked by programs that have no token, and telling nothing but alive and ready.
HEALTH_PATHS = frozenset({"/health/live", "/health/ready"})


def make_admin_app(
    engine: AsyncEngine,
    model: ServedModel,
    token: AdminToken,
    metrics: Metrics,
    config: ServerConfig,
    permits: Permits,
) -> FastAPI:
    """Return the application of the admin plane.

    Args:
        engine: What it looks at and acts on.
        model: The model behind it, to begin with.
        token: What every request must bring, but for health and the page's own files.
        metrics: What ``/metrics`` shows, and where this plane's answers are counted.
        config: Limits of bodies and of time, and whether text of prompts may be shown.
        permits: Of the public plane; what a revocation ends.
    """
    tenants = permits.authenticator.tenants
    page = load_page()
    app = FastAPI(
        title="Prefold, admin plane",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(ExchangeLayer, plane=Plane.ADMIN, observer=metrics),
            Middleware(AdminGate, token=token, open_paths=HEALTH_PATHS | page.keys()),
            Middleware(
                BodyReader,
                max_body_bytes=config.max_body_bytes,
                limits=JsonLimits(max_depth=config.max_depth),
            ),
        ],
    )
    install_fault_handlers(app)
    app.include_router(_open_router(engine))
    app.include_router(page_router(page))
    # For the document only: it is the gate that asks for the token.
    guarded = APIRouter(dependencies=[Security(HTTPBearer(auto_error=False))])
    models = CurrentModel(engine, model)
    readers = PerModel(models, lambda model: PromptReader(model, tenants, permits.grants))
    guarded.include_router(_figures_router(engine, models, config, tenants))
    guarded.include_router(_metrics_router(engine, metrics))
    if metrics.what_if is not None:
        guarded.include_router(what_if_router(engine, metrics.what_if))
    timeout_s = config.request_timeout_s
    guarded.include_router(_cache_router(engine, readers, timeout_s))
    guarded.include_router(approvals_router(engine, readers, timeout_s))
    guarded.include_router(invalidation_router(engine, readers, permits, metrics.journal))
    guarded.include_router(
        misses_router(
            Explainer(
                engine, metrics.journal, models.get, shows_text=config.allow_prompt_text
            )
        )
    )
    guarded.include_router(model_router(engine, models))
    guarded.include_router(adapters_router(engine, models))
    guarded.include_router(worth_router(engine, metrics.worth, tenant_by_domain(tenants)))

    def maker() -> TextMaker:
        return TextMaker(model=models.get() if config.allow_prompt_text else None)

    guarded.include_router(runs_router(engine, readers, maker, timeout_s, metrics.journal))
    guarded.include_router(pins_router(engine))
    facts = PageFacts(
        tenants=[tenant.name for tenant in tenants],
        shows_text=config.allow_prompt_text,
    )
    guarded.include_router(figures_router(engine, models, metrics.recent, facts))
    app.include_router(guarded)
    return app


class AdminGate:
    """Asks every request for the admin token, before anything else is made of it.

    Args:
        app: What is behind it.
        token: The one that opens it.
        open_paths: Paths that need none.
    """

    __slots__ = ("_app", "_open_paths", "_token")

    def __init__(
        self, app: ASGIApp, *, token: AdminToken, open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._token = token
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            values = Headers(scope=scope).getlist("authorization")
            if len(values) > 1:
                raise AuthenticationError(
                    "there are several Authorization headers; send one"
                )
            self._token.check(values[0] if values else None)
        await self._app(scope, receive, send)


def _open_router(engine: AsyncEngine) -> APIRouter:
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/health/live")
    async def live() -> HealthReply:
        """Say whether the server works; if not, restart it."""
        if not engine.is_alive:
            raise _no_health("the engine has broken down; restart the server")
        return HealthReply(status="alive")

    @router.get("/health/ready")
    async def ready() -> HealthReply:
        """Say whether the server takes requests."""
        if not engine.is_alive or not engine.is_accepting:
            raise _no_health("the server takes no requests now")
        return HealthReply(status="ready")

    return router


def _figures_router(
    engine: AsyncEngine,
    models: CurrentModel,
    config: ServerConfig,
    tenants: Iterable[TenantConfig],
) -> APIRouter:
    router = APIRouter(responses=ERROR_RESPONSES)
    names = tenant_by_domain(tenants)

    @router.get("/health")
    async def health() -> HealthReply:
        """Say both in a word: ready, draining or broken."""
        if not engine.is_alive:
            return HealthReply(status="broken")
        return HealthReply(status="ready" if engine.is_accepting else "draining")

    @router.get("/cache/stats")
    async def stats() -> StatsReply:
        """Return the cache's and the engine's figures."""
        return await operations.read_stats(engine, models.get(), names)

    @router.get("/cache/tree", response_model=TreeReply)
    async def tree(
        max_nodes: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
        depth: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        """Return the cached runs, from the beginnings of prompts outwards."""
        runs = await operations.read_tree(
            engine,
            ListingBounds(max_nodes=max_nodes, max_depth=depth),
            models.get() if config.allow_prompt_text else None,
        )
        # Thousands of runs take longer to write than anybody else should wait.
        text = await asyncio.to_thread(runs.model_dump_json)
        return Response(text, media_type="application/json")

    @router.get("/queue")
    async def queue() -> QueueReply:
        """Return how many are served and how many wait."""
        return await operations.read_queue(engine)

    return router


def _metrics_router(engine: AsyncEngine, metrics: Metrics) -> APIRouter:
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {
                "description": "In Prometheus' text format.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        },
    )
    async def read_metrics() -> Response:
        """Return all metrics."""
        live = metrics.what_if

        def take(it: Engine) -> tuple[EngineSnapshot, WhatIf | None]:
            what_if = None if live is None else live.read(it.parts.fingerprint)
            return take_snapshot(it), what_if

        try:
            text = metrics.render(*await engine.call(take))
        except EngineStoppedError:
            # What was counted is still worth reading, now more than ever.
            text = metrics.render(None)
        return Response(text, media_type=CONTENT_TYPE)

    @router.get("/requests/{request_id}/timing")
    async def timing(
        request_id: str, tenant: Annotated[str | None, Query()] = None
    ) -> TimingReply:
        """Return the engine's own times of the latest request that had that id."""
        return operations.read_timing(metrics.timings, request_id, tenant)

    return router


def _cache_router(
    engine: AsyncEngine, readers: PerModel[PromptReader], timeout_s: float | None
) -> APIRouter:
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/cache/warm")
    async def warm(request: WarmRequest, http: Request) -> WarmReply:
        """Compute prompts now, so that later requests hit them."""

        async def work(reader: PromptReader) -> WarmReply:
            prompts, options = await reader.read(request, body_size(http))
            return await operations.warm(engine, prompts, options, reader.fingerprint)

        return await while_wanted(readers.serve(work), http.receive, timeout_s=timeout_s)

    @router.post("/cache/lookup")
    async def look_up(request: PromptRequest, http: Request) -> LookupReply:
        """Say what prompts would hit. Has no effect."""

        async def work(reader: PromptReader) -> LookupReply:
            prompts, options = await reader.read(request, body_size(http))
            return await operations.look_up(engine, prompts, options, reader.fingerprint)

        return await readers.serve(work)

    return router


def _no_health(message: str) -> HttpError:
    return HttpError(503, message, code="unavailable", retry_after_s=1.0)
