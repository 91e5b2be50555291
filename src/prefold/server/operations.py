"""Operations: what the admin plane does to an engine, and what it tells of one.

Whatever touches the engine runs on its thread, between two steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from prefold.blocks.table import TokenIds
from prefold.cache import CacheListing, CostFit, ListedRun, ListingBounds, Lookup
from prefold.engine.async_engine import AsyncEngine
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.request import FinishReason, RequestOutput, SamplingParams
from prefold.errors import CapacityError, EngineStoppedError, ModelChangedError
from prefold.identity.fingerprint import Fingerprint
from prefold.server.admin_protocol import (
    BlockFigures,
    ChoiceTimes,
    CostFigures,
    FoundPrompt,
    LookupReply,
    QueueReply,
    Run,
    ShareFigures,
    StatsReply,
    TimingReply,
    TreeReply,
    WarmedPrompt,
    WarmReply,
)
from prefold.server.errors import HttpError
from prefold.server.hits import hit_class
from prefold.server.served_model import ServedModel
from prefold.server.shown_tokens import show_tokens
from prefold.server.snapshot import DEPTH_TOKENS, ShareOfPool, take_snapshot
from prefold.server.timings import MAX_REQUESTS, ChoiceTiming, RecentTimings

#: Computes a prompt and makes no reply.
NO_REPLY = SamplingParams(max_tokens=0)


async def warm(
    engine: AsyncEngine,
    prompts: Sequence[TokenIds],
    options: RequestOptions,
    fingerprint: Fingerprint,
) -> WarmReply:
    """Compute prompts without replies, so that later requests hit them.

    If it is cancelled, it ends within a step; whole blocks computed by then stay cached.

    Args:
        engine: Who computes them.
        prompts: Their token ids.
        options: Whose requests are to hit them.
        fingerprint: Of the model that they were read for.

    Raises:
        ModelChangedError: The model is another by now.
        RequestError: A prompt can never be served.
        CapacityError: There is no room now, or a computation failed.
        EngineStoppedError: No more requests are taken.
        HttpError: The domain was revoked meanwhile.
    """
    streams = await engine.submit_together(
        [(prompt, NO_REPLY) for prompt in prompts],
        options=options,
        fingerprint=fingerprint,
    )
    try:
        outputs = await asyncio.gather(*(stream.outputs() for stream in streams))
    except BaseException:
        for stream in streams:
            stream.abort()
        raise
    for [output] in outputs:
        check_computed(engine, output)
    found = await _look_up(engine, prompts, options, fingerprint)
    return WarmReply(
        prompts=[
            _warmed(output, lookup) for [output], lookup in zip(outputs, found, strict=True)
        ]
    )


def check_computed(engine: AsyncEngine, output: RequestOutput) -> None:
    """Tell an operator whose prompt was not computed to its end what to do.

    Raises:
        CapacityError: It could not be.
        HttpError: Its domain was revoked meanwhile.
        EngineStoppedError: The engine stopped.
    """
    if output.error is not None:
        raise CapacityError(f"a prompt was not computed: {output.error}; try again")
    if output.finish_reason is not FinishReason.ABORTED:
        return
    if not engine.is_accepting:
        raise EngineStoppedError("the engine stopped before a prompt was computed")
    raise HttpError(
        409,
        "the domain was revoked while this was computed; send it again if it is still "
        "wanted",
        code="domain_revoked",
    )


async def look_up(
    engine: AsyncEngine,
    prompts: Sequence[TokenIds],
    options: RequestOptions,
    fingerprint: Fingerprint,
) -> LookupReply:
    """Say what prompts would hit at this moment. Has no effect.

    The arguments are those of ``warm``.

    Raises:
        ModelChangedError: The model is another by now.
        EngineStoppedError: The engine cannot be asked.
    """
    found = await _look_up(engine, prompts, options, fingerprint)
    return LookupReply(
        prompts=[
            FoundPrompt(
                prompt_tokens=len(prompt),
                hit_tokens=lookup.num_hit_tokens,
                miss=lookup.miss.kind.value,
                explanation=lookup.miss.describe(),
            )
            for prompt, lookup in zip(prompts, found, strict=True)
        ]
    )


async def read_stats(
    engine: AsyncEngine, model: ServedModel, tenants: Mapping[str, str]
) -> StatsReply:
    """Return the figures of this moment.

    Args:
        engine: Whose.
        model: The one that is served.
        tenants: Names of tenants by the paths of their domains.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """
    now = await engine.call(take_snapshot)
    return StatsReply(
        model=model.name,
        fingerprint=model.system_fingerprint,
        blocks=BlockFigures.of(now.cache.blocks, now.num_blocks),
        block_size=now.block_size,
        capacity_tokens=now.num_blocks * now.block_size,
        num_trees=now.cache.num_trees,
        num_runs=now.cache.num_nodes,
        num_leases=now.cache.num_leases,
        num_approvals=now.num_approvals,
        num_pinned_blocks=now.num_pinned_blocks,
        max_pinned_blocks=now.quotas.max_pinned,
        policy=now.policy,
        shares=[_share(each, tenants) for each in now.quotas.shares],
        num_others_idle_blocks=now.quotas.num_others_idle,
        num_approved_idle_blocks=now.quotas.num_approved_idle,
        prefill_cost=None if now.cost is None else _cost(now.cost),
        num_evictions=now.cache.num_evictions,
        num_evicted_blocks=now.cache.num_evicted_blocks,
        num_steps=now.num_steps,
        num_computed_tokens=now.num_computed_tokens,
        num_hit_tokens=now.num_hit_tokens,
        num_sampled_tokens=now.num_sampled_tokens,
        num_admissions=now.num_admissions,
        num_preemptions=now.num_preemptions,
        num_failed_steps=now.num_failed_steps,
        num_regretted_tokens=now.num_regretted_tokens,
        regretted_prefill_s=now.regretted_s,
    )


def _share(share: ShareOfPool, tenants: Mapping[str, str]) -> ShareFigures:
    return ShareFigures(
        tenant=tenants.get(share.domain),
        domain=share.domain,
        idle_blocks=share.num_idle,
        reserved_blocks=share.num_reserved,
        max_idle_blocks=share.max_idle,
    )


def _cost(fit: CostFit) -> CostFigures:
    return CostFigures(token_s=fit.per_token, depth_s=DEPTH_TOKENS * fit.per_pair)


async def read_tree(
    engine: AsyncEngine, bounds: ListingBounds, model: ServedModel | None
) -> TreeReply:
    """Return the cached runs.

    Args:
        engine: Whose.
        bounds: How many.
        model: Whose tokenizer makes text of tokens; None where text must not be shown.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """

    def take(it: Engine) -> CacheListing:
        return it.cache.listing(bounds)

    listing = await engine.call(take)
    return await asyncio.to_thread(_to_tree, listing, model)


def _to_tree(listing: CacheListing, model: ServedModel | None) -> TreeReply:
    return TreeReply(
        runs=[_run(run, model) for run in listing.runs],
        num_runs=listing.num_nodes,
        is_complete=listing.is_complete,
    )


async def read_queue(engine: AsyncEngine) -> QueueReply:
    """Return who is served and who waits.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """
    now = await engine.call(take_snapshot)
    return QueueReply(
        waiting=now.num_waiting,
        running=now.num_running,
        max_queued=now.max_queued,
        is_accepting=engine.is_accepting,
    )


def read_timing(timings: RecentTimings, request_id: str, tenant: str | None) -> TimingReply:
    """Return the engine's own times of the latest request that had an id.

    Args:
        timings: Of the last requests.
        request_id: What its client was told.
        tenant: Whose; None where one tenant alone used the id.

    Raises:
        HttpError: There is none, or there are several tenants and none is named.
    """
    if tenant is None:
        tenants = timings.tenants_of(request_id)
        if len(tenants) > 1:
            raise HttpError(
                400,
                "tenant is missing: requests of several had that id, so name one with "
                f"?tenant=NAME; there is {', '.join(tenants[:10])}",
                param="tenant",
                code="missing_required_parameter",
            )
        tenant = tenants[0] if tenants else None
    choices = None if tenant is None else timings.find(request_id, tenant)
    if tenant is None or choices is None:
        raise HttpError(
            404,
            f"no such request has ended among the last {MAX_REQUESTS}; use the "
            "x-request-id of its answer",
        )
    return TimingReply(
        request_id=request_id,
        tenant=tenant,
        choices=[_choice_times(choice) for choice in choices],
    )


def _choice_times(choice: ChoiceTiming) -> ChoiceTimes:
    usage, timing = choice.usage, choice.timing
    return ChoiceTimes(
        finish_reason=choice.finish_reason.value,
        hit=hit_class(usage).value,
        miss=choice.miss,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        queued_s=timing.queued_s,
        ttft_s=timing.ttft_s,
        tpot_s=timing.tpot_s,
        total_s=timing.total_s,
    )


async def _look_up(
    engine: AsyncEngine,
    prompts: Sequence[TokenIds],
    options: RequestOptions,
    fingerprint: Fingerprint,
) -> list[Lookup]:
    def ask(it: Engine) -> list[Lookup]:
        if it.parts.fingerprint != fingerprint:
            raise ModelChangedError("the model was replaced; read the prompt again")
        return [it.lookup(prompt, options=options) for prompt in prompts]

    return await engine.call(ask)


def _warmed(output: RequestOutput, lookup: Lookup) -> WarmedPrompt:
    return WarmedPrompt(
        prompt_tokens=output.usage.prompt_tokens,
        cached_tokens=output.usage.cached_tokens,
        hit_tokens=lookup.num_hit_tokens,
    )


def _run(run: ListedRun, model: ServedModel | None) -> Run:
    text = None
    if model is not None:
        # Of a run that begins inside a character, the first sign is a replacement.
        text = show_tokens(run.token_ids.tolist(), model.tokenizer.decode)
    return Run(
        parent=run.parent,
        depth=run.depth,
        fingerprint=run.tree,
        start=run.start,
        tokens=run.num_tokens,
        blocks=run.num_blocks,
        is_partial=run.is_partial,
        audience=run.kind.value,
        approvals=list(run.labels),
        domain=run.domain,
        is_salted=run.is_salted,
        leases=run.num_leases,
        hits=run.num_hits,
        idle_s=run.idle_s,
        children=run.num_children,
        text=text,
    )
