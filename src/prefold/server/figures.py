"""Figures: what the page shows of this moment, in one answer that is quick to make."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefold.engine.async_engine import AsyncEngine
from prefold.engine.engine import Engine
from prefold.server.admin_protocol import BlockFigures
from prefold.server.recent import BUCKET_S, RecentHits
from prefold.server.runs_protocol import FiguresReply, FirstTokenFigures, HitFigures
from prefold.server.served_model import ServedModel
from prefold.server.snapshot import EngineSnapshot, take_snapshot

#: Routes that the page asks for where the server has them.
VIEWS = {"misses": "/cache/misses", "whatif": "/cache/whatif", "worth": "/cache/worth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """What does not change from one moment to the next.

    Attributes:
        tenants: Their names.
    """

    tenants: Sequence[str]
    shows_text: bool


async def read_figures(
    engine: AsyncEngine,
    model: ServedModel,
    recent: RecentHits,
    facts: PageFacts,
    paths: Collection[str],
) -> FiguresReply:
    """Return the figures of this moment.

    Args:
        engine: Whose.
        model: The one that is served.
        recent: Hits of the last minutes.
        facts: What is the same at every moment.
        paths: Of the plane's routes.

    Raises:
        EngineStoppedError: The engine cannot be asked.
    """
    now, block_bytes = await engine.call(_take)
    return FiguresReply(
        model=model.name,
        fingerprint=model.system_fingerprint,
        is_accepting=engine.is_accepting,
        blocks=BlockFigures.of(now.cache.blocks, now.num_blocks),
        block_size=now.block_size,
        block_bytes=block_bytes,
        num_runs=now.cache.num_nodes,
        num_pinned_blocks=now.num_pinned_blocks,
        max_pinned_blocks=now.quotas.max_pinned,
        num_evicted_blocks=now.cache.num_evicted_blocks,
        running=now.num_running,
        waiting=now.num_waiting,
        bucket_s=BUCKET_S,
        hits=[
            HitFigures(
                age_s=sums.age_s,
                requests=sums.num_requests,
                prompt_tokens=sums.prompt_tokens,
                hit_tokens=sums.hit_tokens,
            )
            for sums in recent.sums()
        ],
        first_token=[
            FirstTokenFigures(
                hit=times.hit.value,
                requests=times.num_requests,
                p50_s=times.median_s,
                p95_s=times.p95_s,
            )
            for times in recent.first_tokens()
        ],
        tenants=list(facts.tenants),
        shows_text=facts.shows_text,
        views=[name for name, path in VIEWS.items() if path in paths],
    )


def _take(engine: Engine) -> tuple[EngineSnapshot, int | None]:
    origin = engine.parts.origin
    block_bytes = None if origin is None else origin.store.layout.block_bytes
    return take_snapshot(engine), block_bytes
