"""Health: the one route that needs no key."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from prefold.server.calls import Desk
from prefold.server.errors import broken, stopped
from prefold.server.protocol import ERROR_RESPONSES, ReplyModel

HEALTH_PATH = "/health"


class HealthReply(ReplyModel):
    """The server takes requests."""

    status: Literal["ok"] = "ok"


def health_router(desk: Desk) -> APIRouter:
    """Return the route."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get(HEALTH_PATH)
    async def check_health() -> HealthReply:
        """Tell whether requests are taken."""
        if not desk.is_accepting:
            raise broken() if desk.is_broken else stopped()
        return HealthReply()

    return router
