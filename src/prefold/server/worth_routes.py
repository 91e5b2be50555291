"""Route of worth on the admin plane: whether caching pays here."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from prefold.engine.async_engine import AsyncEngine
from prefold.server.protocol import ERROR_RESPONSES
from prefold.server.worth import read_worth
from prefold.server.worth_meter import WorthMeter
from prefold.server.worth_protocol import WorthReply


def worth_router(
    engine: AsyncEngine, meter: WorthMeter, tenants: Mapping[str, str]
) -> APIRouter:
    """Return the route.

    Args:
        engine: Whose cache.
        meter: What its requests came to.
        tenants: Names of tenants by the paths of their domains.
    """
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/cache/worth")
    async def worth() -> WorthReply:
        """Return what caching saves, what it holds, and a verdict."""
        return await read_worth(engine, meter, tenants)

    return router
