"""Joint submission: several requests that are queued together, or none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prefold.engine.admission import check_queue
from prefold.engine.config import JointAnswer, RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.prompt import Prompt
from prefold.engine.request import RequestId, SamplingParams
from prefold.errors import ModelChangedError, RequestError
from prefold.identity.fingerprint import Fingerprint


def submit_jointly(
    engine: Engine,
    jobs: Sequence[tuple[Prompt, SamplingParams]],
    options: RequestOptions,
    n: int,
    fingerprint: Fingerprint | None,
) -> list[list[RequestId]]:
    """Queue several requests for ``n`` replies each; return the ids of each one's.

    Args:
        engine: Between two steps.
        jobs: Prompts, and how their tokens are chosen.
        options: Of all of them.
        n: Replies to each.
        fingerprint: Of the model that their token ids were made for, perhaps with the
            version of the adapter that their client was told; None for any.

    Raises:
        RequestError: One of them can never be served.
        CapacityError: There is no room for all of them now.
        ModelChangedError: Another model is served by now, or another version.
        UnknownAdapterError: No adapter has that name any more.
    """
    _check_model(engine, fingerprint, options.adapter)
    # Before any of them is queued: what was queued ends as an abort, and would be counted
    # a second time.
    for prompt, params in jobs:
        engine.check(prompt, params, options)
    _check_room(engine, len(jobs) * n)
    if len(jobs) * n > 1:
        options = replace(options, joint=JointAnswer())
    opened: list[list[RequestId]] = []
    try:
        for prompt, params in jobs:
            opened.append([engine.submit(prompt, params, options=options)])
            if n > 1:
                opened[-1] += engine.fork(opened[-1][0], n - 1)
    except BaseException:
        for request_ids in opened:
            for request_id in request_ids:
                engine.abort(request_id)
        raise
    return opened


def _check_model(
    engine: Engine, fingerprint: Fingerprint | None, adapter: str | None
) -> None:
    """Refuse token ids that were made for another model, to which they mean others."""
    current = engine.parts.fingerprint
    if fingerprint not in (None, current, engine.adapters.fingerprint_of(current, adapter)):
        raise ModelChangedError("the model was replaced; read the prompt again")


def _check_room(engine: Engine, num_new: int) -> None:
    """Refuse what may not wait."""
    config = engine.config.scheduler
    if num_new > config.max_queued:
        raise RequestError(
            f"{num_new} replies are asked for at once, but only {config.max_queued} "
            "requests may wait (max_queued); ask for fewer"
        )
    # Between steps every running sequence holds one lease, and nobody else does.
    num_waiting = engine.num_open - engine.cache.snapshot().num_leases
    check_queue(num_waiting, num_new, config)
