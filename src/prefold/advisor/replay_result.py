"""Replay result: what one policy at one capacity made of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prefold.advisor.trace import Trace
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayResult:
    """Hits of one policy at one capacity.

    Attributes:
        num_blocks: Blocks of the cache.
        num_prompt_tokens: Of all requests, those of partial blocks and of prompts that
            are larger than the cache included.
        hit_tokens: Prompt tokens that were cached, one entry a request; read only.
        num_uncached: Requests whose prompt is larger than the cache.
        num_evictions: Times a leaf's tail was evicted.
        saved_prefill_ms: What the hit tokens would have cost.
    """

    policy: str
    num_blocks: int
    num_requests: int
    num_prompt_tokens: int
    hit_tokens: npt.NDArray[np.int64] = field(repr=False)
    num_uncached: int
    num_evictions: int
    num_evicted_blocks: int
    saved_prefill_ms: float

    @property
    def num_hit_tokens(self) -> int:
        return int(self.hit_tokens.sum())

    @property
    def hit_rate(self) -> float:
        """Hit tokens over prompt tokens; 0 for a trace without tokens."""
        if self.num_prompt_tokens == 0:
            return 0.0
        return self.num_hit_tokens / self.num_prompt_tokens


def check_capacity(num_blocks: int) -> None:
    """Refuse a cache without blocks.

    Raises:
        InvalidInputError: ``num_blocks`` is below 1.
    """
    if num_blocks < 1:
        raise InvalidInputError(f"a capacity must be at least 1 block, got {num_blocks}")


def summarize(  # noqa: PLR0913 -- what a replay has counted, each by its name
    trace: Trace,
    *,
    policy: str,
    num_blocks: int,
    hit_blocks: npt.NDArray[np.int64],
    num_uncached: int,
    num_evictions: int,
    num_evicted_blocks: int,
    cost: CostFit,
) -> ReplayResult:
    """Return the result of a replay that hit ``hit_blocks`` full blocks, by request."""
    hit_tokens = hit_blocks * trace.block_size
    hit_tokens.flags.writeable = False
    return ReplayResult(
        policy=policy,
        num_blocks=num_blocks,
        num_requests=len(trace.requests),
        num_prompt_tokens=trace.num_prompt_tokens,
        hit_tokens=hit_tokens,
        num_uncached=num_uncached,
        num_evictions=num_evictions,
        num_evicted_blocks=num_evicted_blocks,
        saved_prefill_ms=1000 * sum(cost.saved_s(0, num) for num in hit_tokens.tolist()),
    )
