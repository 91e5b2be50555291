"""Routes of miss reasons on the admin plane: the latest, and one request's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from prefold.server.journal import MAX_PROMPTS
from prefold.server.miss_operations import Explainer
from prefold.server.miss_protocol import ExplainReply, MissesReply
from prefold.server.protocol import ERROR_RESPONSES


def misses_router(explainer: Explainer) -> APIRouter:
    """Return the routes that say why requests missed."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/cache/misses")
    async def misses(
        limit: Annotated[int, Query(ge=1, le=MAX_PROMPTS)] = 50,
    ) -> MissesReply:
        """List the last prompts that missed something, newest first."""
        return await explainer.list_misses(limit)

    @router.get("/cache/explain/{request_id}")
    async def explain(
        request_id: str, tenant: Annotated[str | None, Query()] = None
    ) -> ExplainReply:
        """Say why the latest request that had that id missed."""
        return await explainer.explain(request_id, tenant)

    return router
