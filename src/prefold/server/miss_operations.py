"""Miss operations: what the admin plane tells of why requests missed.

Comparing prompts takes milliseconds and is done when asked, on another thread; what was
found is kept with the entry, as long as that is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from prefold.advisor import Breakpoint
from prefold.cache import MissReason
from prefold.engine.async_engine import AsyncEngine
from prefold.server.divergence import Decode, Divergence, find_divergence, is_culprit
from prefold.server.errors import HttpError
from prefold.server.journal import MAX_PROMPTS, Entry, Journal, Kept, KeptTokens
from prefold.server.miss_advice import advise
from prefold.server.miss_protocol import (
    CulpritReply,
    DivergedText,
    EarlierRequest,
    ExplainedPrompt,
    ExplainReply,
    MissesReply,
    MissRow,
    ReasonReply,
)
from prefold.server.served_model import ServedModel
from prefold.server.shown_tokens import show_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An entry's values, to be compared on another thread."""

    entry: Entry
    prompt: KeptTokens = field(repr=False)
    miss: MissReason
    earlier: Sequence[Kept]


class Explainer:
    """Says why requests missed. Used on the event loop.

    Args:
        engine: Whose clock losses are told by.
        journal: Of the last requests.
        model: The one that is served, whose tokenizer makes text of tokens.
        shows_text: Whether text of prompts may be shown.
        clock: Seconds since 1970.
    """

    __slots__ = ("_clock", "_engine", "_journal", "_model", "_shows_text")

    def __init__(
        self,
        engine: AsyncEngine,
        journal: Journal,
        model: Callable[[], ServedModel],
        *,
        shows_text: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._model = model
        self._shows_text = shows_text
        self._clock = clock

    async def list_misses(self, limit: int) -> MissesReply:
        """Return the last prompts that missed something, newest first."""
        entries = self._journal.latest(limit)
        await self._compare([entry for entry in entries if not entry.was_compared])
        return MissesReply(
            data=[
                MissRow(
                    request_id=entry.request.text,
                    tenant=entry.request.tenant,
                    at=entry.at,
                    prompt_tokens=entry.num_prompt_tokens,
                    hit_tokens=entry.num_hit_tokens,
                    reason=_reason(entry.miss, entry.finding),
                )
                for entry in entries
                if entry.miss is not None
            ]
        )

    async def explain(self, request_id: str, tenant: str | None) -> ExplainReply:
        """Return why the latest request of an id missed.

        Args:
            request_id: What its client was told.
            tenant: Whose; None where one tenant alone used the id.

        Raises:
            HttpError: There is none, or none that looked anything up, or there are
                several tenants and none is named.
        """
        owner, entries = self._find(request_id, tenant)
        found = await self._compare(entries)
        return ExplainReply(
            request_id=request_id,
            tenant=owner,
            prompts=[
                self._explained(entry, entry.miss, found.get(entry.number))
                for entry in entries
                if entry.miss is not None
            ],
        )

    def _find(self, request_id: str, tenant: str | None) -> tuple[str, list[Entry]]:
        if tenant is None:
            tenants = self._journal.tenants_of(request_id)
            if len(tenants) > 1:
                raise HttpError(
                    400,
                    "tenant is missing: requests of several had that id, so name one with "
                    f"?tenant=NAME; there is {', '.join(tenants[:10])}",
                    param="tenant",
                    code="missing_required_parameter",
                )
            tenant = tenants[0] if tenants else None
        entries = [] if tenant is None else self._journal.find(request_id, tenant)
        if tenant is None or not entries:
            raise HttpError(
                404,
                f"no such request is among the last {MAX_PROMPTS}; use the x-request-id of "
                "its answer",
            )
        if all(entry.miss is None for entry in entries):
            raise HttpError(
                404,
                "that request has not ended, or ended before it was looked up in the "
                "cache; ask again when it has",
            )
        return tenant, entries

    async def _compare(self, entries: Sequence[Entry]) -> dict[int, Divergence]:
        """Compare entries with what came before them; return what was found by number."""
        model = self._model()
        # Another model may have cut the same text into other tokens.
        its = [
            entry for entry in entries if entry.fingerprint.of_model == model.fingerprint
        ]
        jobs = [
            _Job(entry=entry, prompt=entry.prompt, miss=entry.miss, earlier=earlier)
            for entry, earlier in zip(its, self._journal.kept_before(its), strict=True)
            if entry.prompt is not None and entry.miss is not None
        ]
        found = await asyncio.to_thread(_work, jobs, _decoder(model)) if jobs else []
        by_number: dict[int, Divergence] = {}
        for job, divergence in zip(jobs, found, strict=True):
            job.entry.was_compared = True
            if divergence is not None:
                job.entry.finding = divergence.finding
                by_number[job.entry.number] = divergence
        return by_number

    def _explained(
        self, entry: Entry, miss: MissReason, found: Divergence | None
    ) -> ExplainedPrompt:
        finding = entry.finding
        culprit = finding.kind if finding is not None and is_culprit(finding) else None
        return ExplainedPrompt(
            at=entry.at,
            prompt_tokens=entry.num_prompt_tokens,
            hit_tokens=entry.num_hit_tokens,
            reason=_reason(miss, finding),
            advice=advise(miss.kind, miss.pressure, culprit),
            lost_at=self._told_in_days(miss.lost_at),
            lost_blocks=miss.num_lost_blocks,
            policy=miss.policy,
            pressure=None if miss.pressure is None else miss.pressure.value,
            selector=miss.selector,
            differing_fields=list(miss.differing_fields),
            earlier=None if found is None else self._earlier(found),
        )

    def _earlier(self, found: Divergence) -> EarlierRequest:
        nearest, texts = found.nearest, found.texts
        text = None
        if self._shows_text:
            text = DivergedText(
                before=texts.before, earlier=texts.earlier, later=texts.later
            )
        return EarlierRequest(
            request_id=nearest.kept.request_id,
            at=nearest.kept.at,
            common_tokens=nearest.num_common,
            text=text,
        )

    def _told_in_days(self, at: float | None) -> float | None:
        """Return a time of the cache's clock in seconds since 1970."""
        if at is None:
            return None
        return self._clock() - (self._engine.engine.parts.clock() - at)


def _work(jobs: Sequence[_Job], decode: Decode) -> list[Divergence | None]:
    return [find_divergence(job.prompt, job.miss, job.earlier, decode) for job in jobs]


def _decoder(model: ServedModel) -> Decode:
    plain = partial(
        model.tokenizer.decode,
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    return lambda token_ids: show_tokens(token_ids, plain)


def _reason(miss: MissReason, finding: Breakpoint | None) -> ReasonReply:
    culprit = None
    if finding is not None and is_culprit(finding):
        culprit = CulpritReply(kind=finding.kind.value, detail=finding.detail)
    return ReasonReply(
        kind=miss.kind.value,
        at_token=miss.at_token,
        sentence=_sentence(miss.describe()),
        culprit=culprit,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
