"""Routes of sharing on the admin plane: approvals, invalidation, revocation."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request

from prefold.engine.async_engine import AsyncEngine
from prefold.identity.domain import PUBLIC, Domain
from prefold.server import sharing
from prefold.server.admin_protocol import EmptyRequest, ReceiptReply
from prefold.server.attendance import while_wanted
from prefold.server.body import body_size
from prefold.server.journal import Journal
from prefold.server.permits import Permits
from prefold.server.prompt_reader import PromptReader
from prefold.server.protocol import ERROR_RESPONSES, DomainPath
from prefold.server.selection import forget_selected
from prefold.server.served_model import PerModel
from prefold.server.sharing_protocol import (
    ApprovalReply,
    ApprovalsReply,
    ApproveRequest,
    InvalidateRequest,
    RevokedReply,
    WithdrawRequest,
)


def approvals_router(
    engine: AsyncEngine, readers: PerModel[PromptReader], timeout_s: float | None
) -> APIRouter:
    """Return the routes of approved prefixes."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/cache/approve")
    async def approve(request: ApproveRequest, http: Request) -> ApprovalReply:
        """Compute a prefix once, and let all readers of a domain share it."""

        async def work(reader: PromptReader) -> ApprovalReply:
            token_ids = await reader.read_prefix(request, body_size(http))
            return await sharing.approve(engine, token_ids, request, reader.fingerprint)

        return await while_wanted(readers.serve(work), http.receive, timeout_s=timeout_s)

    @router.get("/cache/approvals")
    async def list_approvals(
        domain: Annotated[DomainPath | None, Query()] = None,
    ) -> ApprovalsReply:
        """List the approvals that hold, of all or for a domain and those below it."""
        return await sharing.list_approvals(engine, domain)

    @router.post("/cache/withdraw")
    async def withdraw(request: WithdrawRequest) -> ReceiptReply:
        """End an approval, at once."""
        return await sharing.withdraw(engine, request.id)

    return router


def invalidation_router(
    engine: AsyncEngine,
    readers: PerModel[PromptReader],
    permits: Permits,
    journal: Journal,
) -> APIRouter:
    """Return the routes that drop what is cached, and what ``journal`` keeps of it."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post("/cache/invalidate")
    async def invalidate(request: InvalidateRequest, http: Request) -> ReceiptReply:
        """Drop what one selector covers, at once."""

        async def work(reader: PromptReader) -> ReceiptReply:
            return await sharing.invalidate(engine, reader, request, body_size(http))

        receipt = await readers.serve(work)
        forget_selected(journal, request)
        return receipt

    @router.post("/cache/reset")
    async def reset(request: EmptyRequest) -> ReceiptReply:
        """Drop everything that is cached, at once."""
        del request
        receipt = await sharing.reset(engine)
        journal.forget()
        return receipt

    @router.delete("/domains/{path:path}")
    async def revoke(
        path: Annotated[DomainPath, Path()],
        requests: Annotated[Literal["abort", "drain"], Query()] = "abort",
    ) -> RevokedReply:
        """Revoke a domain and all below it: keys, requests, and what is cached."""
        try:
            return await sharing.revoke(engine, permits, path, requests)
        finally:
            # Whatever else could not be done, what it had asked is not kept.
            if Domain(path) != PUBLIC:
                journal.drop_domain(Domain(path))

    return router
