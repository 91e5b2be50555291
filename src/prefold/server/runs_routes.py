"""Routes of browsing on the admin plane: runs a few at a time, and what to do to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.routing import iter_route_contexts

from prefold.engine.async_engine import AsyncEngine
from prefold.server import runs
from prefold.server.admin_protocol import EmptyRequest, ReceiptReply
from prefold.server.attendance import while_wanted
from prefold.server.body import body_size
from prefold.server.figures import PageFacts, read_figures
from prefold.server.journal import Journal
from prefold.server.prompt_reader import PromptReader
from prefold.server.protocol import ERROR_RESPONSES
from prefold.server.recent import RecentHits
from prefold.server.runs_protocol import (
    ApproveRunRequest,
    FiguresReply,
    PinReply,
    PinRequest,
    RunId,
    RunPageReply,
    RunReply,
    SearchReply,
    SearchRequest,
)
from prefold.server.served_model import CurrentModel, PerModel
from prefold.server.sharing_protocol import ApprovalReply

_Cursor = Annotated[str | None, Query(max_length=32)]
_Limit = Annotated[int, Query(ge=1, le=200)]
_Id = Annotated[RunId, Path()]


def figures_router(
    engine: AsyncEngine, models: CurrentModel, recent: RecentHits, facts: PageFacts
) -> APIRouter:
    """Return the route of what the page shows of this moment."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/cache/figures")
    async def figures(http: Request) -> FiguresReply:
        """Return what the page shows of this moment."""
        paths = {str(each.path) for each in iter_route_contexts(http.app.routes)}
        return await read_figures(engine, models.get(), recent, facts, paths)

    return router


def pins_router(engine: AsyncEngine) -> APIRouter:
    """Return the routes of operators' pins."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/cache/pin")
    async def pin(request: PinRequest) -> PinReply:
        """Keep a run, and all that it continues, from eviction."""
        return await runs.pin(engine, request.run)

    @router.post("/cache/unpin")
    async def unpin(request: PinRequest) -> PinReply:
        """Let a run that was pinned be evicted again."""
        return await runs.unpin(engine, request.run)

    return router


def runs_router(
    engine: AsyncEngine,
    readers: PerModel[PromptReader],
    maker: Callable[[], runs.TextMaker],
    timeout_s: float | None,
    journal: Journal,
) -> APIRouter:
    """Return the routes.

    Args:
        engine: Whose tree it is.
        readers: Read prompts.
        maker: Returns what makes text of tokens at this moment.
        timeout_s: How long an approval may take.
        journal: What is kept of past requests; forgets what is dropped.
    """
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/cache/runs")
    async def read_children(
        parent: Annotated[RunId | None, Query()] = None,
        cursor: _Cursor = None,
        limit: _Limit = 50,
    ) -> RunPageReply:
        """Return runs that continue one run, or that prompts begin with, newest first."""
        return await runs.read_children(engine, maker(), parent, cursor, limit)

    @router.get("/cache/runs/{id}")
    async def read_run(id: _Id) -> RunReply:  # noqa: A002 -- the path's own name
        """Return one run, with more of its text where that may be shown."""
        return await runs.read_run(engine, maker(), id)

    @router.post("/cache/search")
    async def search(request: SearchRequest, http: Request) -> SearchReply:
        """Find the runs of a domain, or those that a prompt leads to."""

        async def work(reader: PromptReader) -> SearchReply:
            return await runs.search(engine, reader, maker(), request, body_size(http))

        return await readers.serve(work)

    @router.post("/cache/runs/{id}/invalidate")
    async def invalidate(
        request: EmptyRequest,
        id: _Id,  # noqa: A002 -- the path's own name
    ) -> ReceiptReply:
        """Drop a run and all that continues it, at once."""
        del request
        return await runs.invalidate(engine, id, journal)

    @router.post("/cache/runs/{id}/approve")
    async def approve(
        request: ApproveRunRequest,
        http: Request,
        id: _Id,  # noqa: A002 -- the path's own name
    ) -> ApprovalReply:
        """Share a run, and all that it continues, with a domain that has it already."""
        work = runs.approve(engine, id, request)
        return await while_wanted(work, http.receive, timeout_s=timeout_s)

    return router
