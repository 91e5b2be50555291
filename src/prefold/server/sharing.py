"""Sharing: what operators let domains have in common, and how it ends.

Whatever touches the engine runs on its thread, between two steps.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from prefold.blocks.table import TokenIds
from prefold.cache import Approval, ApprovalId, ApprovalTerms, Everything, Receipt
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.request import FinishReason
from prefold.errors import CapacityError, ConfigError, InvalidInputError, ModelChangedError
from prefold.identity.domain import PUBLIC, Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.server.admin_protocol import ReceiptReply
from prefold.server.errors import HttpError
from prefold.server.operations import NO_REPLY, check_computed
from prefold.server.permits import Permits
from prefold.server.prompt_reader import PromptReader
from prefold.server.selection import check_selection, has_prompt, to_selector
from prefold.server.sharing_protocol import (
    ApprovalReply,
    ApprovalsReply,
    ApproveRequest,
    InvalidateRequest,
    RevokedReply,
)

#: Whose turn it is when an operator's prompts are computed; no tenant can have the name.
_OPERATOR = "(operator)"


# -- approvals ---------------------------------------------------------------------------


async def approve(
    engine: AsyncEngine,
    token_ids: TokenIds,
    request: ApproveRequest,
    fingerprint: Fingerprint,
) -> ApprovalReply:
    """Compute a prefix once, and let all readers of a domain share its whole blocks.

    Args:
        engine: Who computes it.
        token_ids: The prefix.
        request: The body.
        fingerprint: Of the model that it was read for.

    Raises:
        ModelChangedError: The model is another by now.
        InvalidInputError: It is less than a block, or can never be served.
        HttpError: It is in conflict with an approval that holds.
        CapacityError: There is no room now, or too much would be pinned.
        EngineStoppedError: No more requests are taken.
    """
    terms = ApprovalTerms(label=request.label, pinned=request.pinned, ttl_s=request.ttl_s)
    domain = Domain(request.domain)

    def check(it: Engine) -> None:
        _check_conflict(it, domain, token_ids, terms)

    [stream] = await engine.submit_together(
        [(token_ids, NO_REPLY)],
        options=RequestOptions(domain=domain, tenant=_OPERATOR, approval=terms),
        fingerprint=fingerprint,
        guard=check,
    )
    try:
        [output] = await stream.outputs()
    except BaseException:
        stream.abort()
        raise
    approval = output.approval
    if output.finish_reason is FinishReason.FAILED:
        # Another one may have been approved meanwhile.
        await engine.call(check)
        raise CapacityError(output.error or "the prefix was computed and not approved")
    check_computed(engine, output)
    if approval is None:
        raise CapacityError("the prefix was computed and not approved; try again")
    return await engine.call(lambda it: _described(it, approval))


def _check_conflict(
    engine: Engine, domain: Domain, token_ids: TokenIds, terms: ApprovalTerms
) -> None:
    try:
        engine.cache.approved.check(engine.parts.fingerprint, domain, token_ids, terms)
    except InvalidInputError as error:
        if len(token_ids) < engine.cache.block_size:
            raise
        raise HttpError(409, str(error), code="approval_conflict") from error


async def list_approvals(engine: AsyncEngine, domain: str | None) -> ApprovalsReply:
    """Return the approvals that hold, of all or for a domain and those below it.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """
    wanted = PUBLIC if domain is None else Domain(domain)

    def take(it: Engine) -> list[ApprovalReply]:
        its = it.approvals()
        return [_described(it, each) for each in its if each.domain.is_within(wanted)]

    return ApprovalsReply(approvals=await engine.call(take))


def _described(engine: Engine, approval: Approval) -> ApprovalReply:
    expires_in_s = None
    if approval.expires_at is not None:
        expires_in_s = max(approval.expires_at - engine.parts.clock(), 0.0)
    num_tokens = len(approval.tokens)
    return ApprovalReply(
        id=approval.approval_id,
        label=approval.label,
        domain=approval.domain.path,
        tokens=num_tokens,
        blocks=num_tokens // engine.cache.block_size,
        pinned=approval.pinned,
        expires_in_s=expires_in_s,
    )


async def withdraw(engine: AsyncEngine, approval_id: str) -> ReceiptReply:
    """End an approval.

    Raises:
        HttpError: There is none with that id.
        EngineStoppedError: The engine cannot be asked.
    """

    def take_back(it: Engine) -> Receipt:
        if approval_id not in {each.approval_id for each in it.approvals()}:
            raise HttpError(
                404,
                "there is no approval with this id; GET /cache/approvals lists those that "
                "hold",
                param="id",
                code="approval_not_found",
            )
        return it.withdraw(ApprovalId(approval_id))

    return to_receipt_reply(await engine.call(take_back))


# -- invalidation ------------------------------------------------------------------------


async def reset(engine: AsyncEngine) -> ReceiptReply:
    """Make everything cached unfindable, at once.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """
    return to_receipt_reply(await engine.call(lambda it: it.cache.invalidate(Everything())))


async def invalidate(
    engine: AsyncEngine, reader: PromptReader, request: InvalidateRequest, size: int
) -> ReceiptReply:
    """Make what a selector covers unfindable, at once.

    Args:
        engine: Whose cache.
        reader: Reads the prompt, if that is what selects.
        request: The body.
        size: Its bytes.

    Raises:
        ModelChangedError: The model is another by now; nothing was dropped.
        HttpError: There is not exactly one selector, or it is none.
        InvalidInputError: A value of it can be none.
        EngineStoppedError: The engine cannot be asked.
    """
    check_selection(request)
    token_ids = None
    if has_prompt(request):
        token_ids = await reader.read_prefix(request, size)

    def carry_out(it: Engine) -> Receipt:
        # What is served now is known here, between two steps.
        if it.parts.fingerprint != reader.fingerprint:
            raise ModelChangedError("the model was replaced; read the prompt again")
        return it.cache.invalidate(to_selector(request, token_ids, it.parts.fingerprint))

    return to_receipt_reply(await engine.call(carry_out))


# -- revocation --------------------------------------------------------------------------


async def revoke(
    engine: AsyncEngine, permits: Permits, path: str, requests: Literal["abort", "drain"]
) -> RevokedReply:
    """Take a domain, and all below it, out of service.

    Keys first, so that nobody can fill again what is emptied then.

    Raises:
        HttpError: It is the domain of everybody, or the key file could not be written:
            then everything else is done all the same.
        EngineStoppedError: The engine cannot be asked; the keys are revoked.
    """
    domain = Domain(path)
    if domain == PUBLIC:
        raise HttpError(
            400,
            f"{PUBLIC.path!r} is everybody's; revoke the domains of single tenants, or "
            "drop all that is cached with POST /cache/reset",
            param="path",
        )
    drains = requests == "drain"
    names = permits.revoke(domain, drains=drains)
    fault: ConfigError | None = None
    num_keys = 0
    try:
        num_keys = await asyncio.to_thread(permits.authenticator.remove_keys, names)
    except ConfigError as error:
        fault = error
    # Once more: a key that this process had not read yet may have come in meanwhile. No
    # call gets in between this and the engine's turn.
    permits.revoke(domain, drains=drains)
    done = await engine.call(lambda it: it.revoker.revoke(domain, drains=drains))
    if fault is not None:
        raise HttpError(
            500,
            f"the domain is revoked in this process, but its keys stay in the file: {fault}"
            "; make it writable and revoke the domain again",
            code="keys_not_removed",
        )
    return RevokedReply(
        **to_receipt_reply(done.receipt).model_dump(),
        domain=path,
        requests=requests,
        revoked_keys=num_keys,
        aborted_requests=done.num_aborted,
        draining_requests=done.num_draining,
    )


def to_receipt_reply(receipt: Receipt) -> ReceiptReply:
    """Return a receipt as operators read it."""
    return ReceiptReply(
        dropped_blocks=receipt.num_blocks,
        leased_blocks=receipt.num_leased_blocks,
        is_upper_bound=receipt.is_upper_bound,
        ended_approvals=receipt.num_approvals,
        num_invalidations=receipt.num_invalidations,
    )
