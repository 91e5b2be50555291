"""Model administration: the routes that put another model in the place of the served one.

Both answer when it is done. It is done also if nobody waits for the answer any more: a
half-way state is nothing that a broken connection should leave behind.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from prefold.engine.async_engine import AsyncEngine
from prefold.engine.prepared_model import DEFAULT_DEADLINE_S
from prefold.engine.swapping import SwapReceipt
from prefold.server.admin_protocol import EmptyRequest, ReceiptReply
from prefold.server.protocol import ERROR_RESPONSES, ReplyModel, StrictModel
from prefold.server.served_model import CurrentModel, system_fingerprint
from prefold.server.sharing import to_receipt_reply

#: A day.
_MAX_DEADLINE_S = 86_400.0


class SwapRequest(StrictModel):
    """Which model comes, and how long requests that have begun may go on."""

    source: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """A directory or a hub id; null for where the present model came from."""
    drain: bool = True
    """Whether requests that have begun may end first."""
    deadline_s: Annotated[float, Field(ge=0, le=_MAX_DEADLINE_S)] = DEFAULT_DEADLINE_S
    """Seconds after which they are ended."""


class SwapReply(ReplyModel):
    """The receipt of a swap; it holds from the moment of the answer."""

    model: str
    fingerprint: str
    """The ``system_fingerprint`` of later replies."""
    changed: list[str]
    """What differs from the model before; nothing if all that is cached was kept."""
    dropped: ReceiptReply | None
    """What is not found any more; null if nothing was dropped."""
    num_ended: int
    """Requests that were ended with a sentence."""
    num_recomputed: int
    """Requests that had begun, and began anew."""


def model_router(engine: AsyncEngine, models: CurrentModel) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/model/swap")
    async def swap(request: SwapRequest) -> SwapReply:
        """Load a model while requests are served, and let it take over."""
        receipt = await engine.swap_model(
            request.source, drain=request.drain, deadline_s=request.deadline_s
        )
        return _reply(receipt, models)

    @router.post("/model/reload-template")
    async def reload_template(request: EmptyRequest) -> SwapReply:
        """Read the chat template again; nobody has to wait for it."""
        del request
        return _reply(await engine.reload_template(), models)

    return router


def _reply(receipt: SwapReceipt, models: CurrentModel) -> SwapReply:
    model, lost = models.get(), receipt.invalidation
    return SwapReply(
        model=model.name,
        fingerprint=system_fingerprint(receipt.fingerprint),
        changed=list(receipt.differing_fields),
        dropped=None if lost is None else to_receipt_reply(lost),
        num_ended=receipt.num_ended,
        num_recomputed=receipt.num_recomputed,
    )
