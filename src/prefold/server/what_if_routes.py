"""Route of the what-if on the admin plane."""

from __future__ import annotations

from fastapi import APIRouter

from prefold.advisor.what_if import WhatIf
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.engine import Engine
from prefold.server.protocol import ERROR_RESPONSES
from prefold.server.what_if import LiveWhatIf
from prefold.server.what_if_protocol import WhatIfReply, what_if_reply


def what_if_router(engine: AsyncEngine, live: LiveWhatIf) -> APIRouter:
    """Return the route that says what other cache sizes would do."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/cache/whatif")
    async def what_if() -> WhatIfReply:
        """Return hit rate and prefill seconds saved at half to four times the capacity."""

        def take(it: Engine) -> WhatIf:
            return live.read(it.parts.fingerprint)

        return what_if_reply(await engine.call(take))

    return router
