"""Outputs for tests: what an engine reports of a request, with values of any kind."""

from __future__ import annotations

from prefold.cache import MissKind, MissReason
from prefold.engine.request import (
    FinishReason,
    RequestId,
    RequestOutput,
    Timing,
    Usage,
)

NEVER_SEEN = MissReason(kind=MissKind.NEVER_SEEN, at_token=64)


def make_output(
    prompt: object = 100,
    cached: object = 64,
    reply: object = 8,
    *,
    reason: FinishReason = FinishReason.STOP,
    miss: MissReason | None = NEVER_SEEN,
    **times: object,
) -> RequestOutput:
    values = {"queued_s": 0.1, "ttft_s": 0.2, "tpot_s": 0.03, "total_s": 1.0, **times}
    return RequestOutput(
        request_id=RequestId("request-1"),
        text="canary text",
        token_ids=(1, 2, 3),
        usage=Usage(
            prompt_tokens=prompt,  # type: ignore[arg-type]
            cached_tokens=cached,  # type: ignore[arg-type]
            completion_tokens=reply,  # type: ignore[arg-type]
        ),
        timing=Timing(**values),  # type: ignore[arg-type]
        finish_reason=reason,
        miss_reason=miss,
    )
