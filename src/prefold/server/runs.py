"""Runs: what operators see of the tree as they look around in it, and do to what they see.

Whatever touches the engine runs on its thread, between two steps, and looks at a bounded
number of runs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from prefold.blocks.table import TokenIds
from prefold.cache import (
    BrowsedRun,
    ByPrefix,
    PageCursor,
    PathContent,
    Receipt,
    RunPage,
    SearchResult,
)
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.engine import Engine
from prefold.errors import InvalidInputError, ModelChangedError
from prefold.identity.domain import AudienceKind, Domain
from prefold.server import sharing
from prefold.server.admin_protocol import ReceiptReply
from prefold.server.errors import HttpError
from prefold.server.journal import Journal
from prefold.server.prompt_reader import PromptReader
from prefold.server.runs_protocol import (
    ApproveRunRequest,
    FoundRunReply,
    PinReply,
    RunApprovalReply,
    RunPageReply,
    RunReply,
    SearchReply,
    SearchRequest,
)
from prefold.server.served_model import ServedModel
from prefold.server.sharing_protocol import ApprovalReply, ApproveRequest
from prefold.server.shown_tokens import show_tokens

#: Tokens of a run that are made text in a list of runs, and where one is asked for.
ROW_TOKENS = 32
WHOLE_TOKENS = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMaker:
    """Makes text of tokens, where the configuration allows to show it.

    Attributes:
        model: Whose tokenizer; None where text must not be shown.
    """

    model: ServedModel | None

    def num_tokens(self, wanted: int) -> int:
        """Return how many of some tokens are needed."""
        return 0 if self.model is None else wanted

    def text(self, token_ids: TokenIds) -> str | None:
        # Of a run that begins inside a character, the first sign is a replacement.
        if self.model is None:
            return None
        return show_tokens(token_ids.tolist(), self.model.tokenizer.decode)


async def read_children(
    engine: AsyncEngine,
    maker: TextMaker,
    parent: str | None,
    cursor: str | None,
    limit: int,
) -> RunPageReply:
    """Return runs that continue one run, or that prompts begin with.

    Args:
        engine: Whose.
        maker: Makes text of them.
        parent: The run's id; None for the beginnings.
        cursor: Where to go on; None for the newest.
        limit: Runs at most.

    Raises:
        HttpError: The run is gone, or the cursor is none.
        EngineStoppedError: The engine cannot be asked.
    """
    try:
        at = None if cursor is None else PageCursor.from_text(cursor)
    except InvalidInputError as error:
        raise HttpError(400, str(error), param="cursor") from error

    def take(it: Engine) -> RunPage | None:
        return it.cache.browser.children(
            parent, cursor=at, limit=limit, num_text_tokens=maker.num_tokens(ROW_TOKENS)
        )

    page = await engine.call(take)
    if page is None:
        raise _is_gone()
    return RunPageReply(
        data=await _to_runs(page.runs, maker),
        children=page.num_children,
        next=None if page.following is None else page.following.to_text(),
    )


async def read_run(engine: AsyncEngine, maker: TextMaker, run_id: str) -> RunReply:
    """Return one run.

    Raises:
        HttpError: It is gone.
        EngineStoppedError: The engine cannot be asked.
    """
    num_tokens = maker.num_tokens(WHOLE_TOKENS)
    run = await engine.call(
        lambda it: it.cache.browser.run(run_id, num_text_tokens=num_tokens)
    )
    if run is None:
        raise _is_gone()
    [reply] = await _to_runs([run], maker)
    return reply


async def search(
    engine: AsyncEngine,
    reader: PromptReader,
    maker: TextMaker,
    request: SearchRequest,
    size: int,
) -> SearchReply:
    """Return the runs that a prompt leads to, or that domains begin with.

    Args:
        engine: Whose.
        reader: Reads the prompt.
        maker: Makes text of what is found.
        request: The body.
        size: Its bytes.

    Raises:
        ModelChangedError: The model is another by now.
        HttpError: There is nothing to look for.
        RequestError: The prompt could not be served.
        EngineStoppedError: The engine cannot be asked.
    """
    domain = request.domain or ""
    has_prompt = request.prompt is not None or request.messages is not None
    if not has_prompt and not domain:
        raise HttpError(
            400, "there is nothing to look for; send domain, prompt or messages"
        )
    token_ids = await reader.read_prefix(request, size) if has_prompt else None
    num_text_tokens = maker.num_tokens(ROW_TOKENS)

    def take(it: Engine) -> SearchResult:
        browser = it.cache.browser
        if token_ids is None:
            return browser.find_domain(
                domain, limit=request.limit, num_text_tokens=num_text_tokens
            )
        if it.parts.fingerprint != reader.fingerprint:
            raise ModelChangedError("the model was replaced; read the prompt again")
        return browser.find_prefix(
            reader.fingerprint,
            token_ids,
            domain=domain,
            limit=request.limit,
            num_text_tokens=num_text_tokens,
        )

    result = await engine.call(take)
    runs = await _to_runs([found.run for found in result.found], maker)
    return SearchReply(
        data=[
            FoundRunReply(run=run, matched_tokens=found.num_matched_tokens)
            for run, found in zip(runs, result.found, strict=True)
        ],
        prompt_tokens=None if token_ids is None else len(token_ids),
        is_complete=result.is_complete,
    )


async def invalidate(engine: AsyncEngine, run_id: str, journal: Journal) -> ReceiptReply:
    """Drop what a domain has that begins as a run does, and what continues it.

    What ``journal`` keeps of that domain goes with it.

    Of what it wrote and what is approved for it, only the kind that the run is of.

    Raises:
        HttpError: It is gone, or less than a block.
        EngineStoppedError: The engine cannot be asked.
    """

    def carry_out(it: Engine) -> tuple[Receipt, Domain]:
        content = _whole_content(it, run_id, "drop")
        receipt = it.cache.invalidate(
            ByPrefix(
                fingerprint=content.fingerprint,
                domain=content.domain,
                kind=content.kind,
                tokens=content.entry_ids,
            )
        )
        return receipt, content.domain

    receipt, domain = await engine.call(carry_out)
    journal.forget(domain)
    return sharing.to_receipt_reply(receipt)


async def approve(
    engine: AsyncEngine, run_id: str, request: ApproveRunRequest
) -> ApprovalReply:
    """Compute what a run and those before it hold once more, to be shared.

    A run is somebody's, and whoever approves it may not have seen its text. So it is
    shared with those at most who are below the domain that has it already; what a salt
    keeps to itself is not shared at all.

    Raises:
        HttpError: It is gone, or not to be shared like that; or another approval holds
            that is in conflict.
        CapacityError: There is no room now, or too much would be pinned.
        EngineStoppedError: No more requests are taken.
    """
    content = await engine.call(lambda it: _whole_content(it, run_id, "approve"))
    path = request.domain or content.domain.path
    if content.domain.salt is not None:
        raise HttpError(
            409,
            "this run is kept to those who know a salt, so it cannot be shared; if others "
            "may read the text, approve that",
            code="run_is_salted",
        )
    if not Domain(path).is_within(content.domain):
        raise HttpError(
            403,
            "a run can be approved for its own domain or one below it; to share the text "
            "with others, approve the text itself with POST /cache/approve",
            param="domain",
            code="domain_not_allowed",
        )
    fingerprint = content.fingerprint
    if fingerprint.adapter is not None or content.token_ids.min() < 0:
        raise HttpError(
            409,
            "this run is an adapter's, and only the model's own can be approved; approve "
            "the text, for the model",
            code="run_is_of_adapter",
        )
    asked = ApproveRequest(
        domain=path, label=request.label, pinned=request.pinned, ttl_s=request.ttl_s
    )
    return await sharing.approve(engine, content.token_ids, asked, fingerprint)


async def pin(engine: AsyncEngine, run_id: str) -> PinReply:
    """Keep a run, and all that it continues, from eviction. Shares nothing.

    Raises:
        HttpError: It is gone.
        InvalidInputError: It is less than a block.
        CapacityError: Too much would be pinned.
        EngineStoppedError: The engine cannot be asked.
    """

    def carry_out(it: Engine) -> PinReply:
        if not it.pinner.pin(run_id):
            raise _is_gone()
        return _budget(it)

    return await engine.call(carry_out)


async def unpin(engine: AsyncEngine, run_id: str) -> PinReply:
    """Let a run that was pinned be evicted again.

    Raises:
        HttpError: It is gone, or no pin ends there.
        EngineStoppedError: The engine cannot be asked.
    """

    def carry_out(it: Engine) -> PinReply:
        if not it.pinner.unpin(run_id):
            raise HttpError(
                404,
                "no pin ends at this run; unpin the one that was pinned, which may be one "
                "that continues it, or withdraw the approval that pins it",
                code="pin_not_found",
            )
        return _budget(it)

    return await engine.call(carry_out)


def _budget(engine: Engine) -> PinReply:
    cache = engine.cache
    return PinReply(
        num_pinned_blocks=cache.approved.num_pinned_blocks,
        max_pinned_blocks=cache.room.quotas.max_pinned,
    )


def _whole_content(engine: Engine, run_id: str, what: str) -> PathContent:
    content = engine.cache.browser.content(run_id)
    if content is None or content.kind is AudienceKind.THROWAWAY:
        raise _is_gone()
    if content.is_partial:
        raise HttpError(
            409,
            f"this is less than a block, too little to {what} by itself; choose the run "
            "that it continues",
            code="run_is_partial",
        )
    return content


async def _to_runs(runs: Sequence[BrowsedRun], maker: TextMaker) -> list[RunReply]:
    if maker.model is None:
        return [_to_run(run, None) for run in runs]
    texts = await asyncio.to_thread(lambda: [maker.text(run.token_ids) for run in runs])
    return [_to_run(run, text) for run, text in zip(runs, texts, strict=True)]


def _to_run(run: BrowsedRun, text: str | None) -> RunReply:
    return RunReply(
        id=run.handle,
        path=list(run.path),
        fingerprint=run.tree,
        start=run.start,
        tokens=run.num_tokens,
        blocks=run.num_blocks,
        is_partial=run.is_partial,
        audience=run.kind.value,
        domain=run.domain,
        is_salted=run.is_salted,
        leases=run.num_leases,
        hits=run.num_hits,
        forks=run.num_forks,
        idle_s=run.idle_s,
        age_s=run.age_s,
        expires_in_s=run.expires_in_s,
        priority=run.priority,
        children=run.num_children,
        pinned=run.is_pinned,
        is_pin=run.is_pin,
        approvals=[
            RunApprovalReply(id=each.approval_id, label=each.label, pinned=each.is_pinned)
            for each in run.approvals
        ],
        text=text,
    )


def _is_gone() -> HttpError:
    return HttpError(
        404,
        "there is no such run any more; it was dropped, evicted or joined with another, so "
        "look again from the beginning",
        code="run_not_found",
    )
