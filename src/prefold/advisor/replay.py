"""Replay: a trace served by the real prefix cache, to see what a policy would have hit.

Every request goes through ``PrefixCache`` at its arrival, one at a time::

    acquire   what of the prompt is there
    reserve   room for its full blocks, for which others may be evicted
    commit    all of them are findable
    release

No model runs and no time passes: the clock stands at the request's arrival. So that the
cache's work is the same whatever a block holds, *a block of the trace is one token here*,
in a cache whose blocks have one token each. What that leaves out is what happens inside a
block: partial last blocks, and copies out of a block that agrees in part. Replies are not
inserted either, since a trace does not say what they were; where they come back as part
of the next turn's prompt, that prompt inserts them.

A prompt of more blocks than the cache has is served uncached: it hits nothing, and
nothing is evicted for it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from prefold.advisor.replay_result import ReplayResult, check_capacity, summarize
from prefold.advisor.trace import Trace, TraceRequest
from prefold.blocks.table import TOKEN_DTYPE
from prefold.cache import PrefixCache
from prefold.cache.use_start import Recorded
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint

#: Everybody reads everything: a trace's ids say who shares with whom.
_DOMAIN = Domain("replay")

#: Ends every prompt that is looked up, since the cache never matches a last token. It is
#: never committed, so it stands for no block.
_LAST_TOKEN = np.array([np.iinfo(TOKEN_DTYPE).max], dtype=TOKEN_DTYPE)


def replay(
    trace: Trace,
    policy: str,
    num_blocks: int,
    cost: CostFit,
    *,
    ranks_by_cost: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Return what a cache of ``num_blocks`` under ``policy`` hits on a trace.

    Equal arguments give equal results. Costs a look-up and a release a request, with
    nothing done per block in Python.

    Args:
        trace: Its requests in the order of their arrival.
        policy: A name that ``prefold.eviction.registry`` knows.
        num_blocks: Blocks of the cache, of the trace's block size.
        cost: What prefill of tokens takes.
        ranks_by_cost: Whether the policy knows that, and not only that tokens are saved.
        on_progress: Called with the number of requests served, now and then.

    Raises:
        ConfigError: There is no such policy.
        InvalidInputError: ``num_blocks`` is below 1, or a request arrives before the one
            in front of it.
    """
    check_capacity(num_blocks)
    begin_at = trace.requests[0].arrival_s if trace.requests else 0.0
    server = _Server(policy, num_blocks, trace.block_size, begin_at)
    if ranks_by_cost:
        server.cache.cost.assume(_cost_of_blocks(cost, trace.block_size))
    hit_blocks = np.zeros(len(trace.requests), dtype=np.int64)
    num_uncached = 0
    for number, request in enumerate(trace.requests):
        server.advance_to(request.arrival_s)
        num_hits = server.serve(request)
        if num_hits is None:
            num_uncached += 1
        else:
            hit_blocks[number] = num_hits
        if on_progress is not None and number % _REQUESTS_A_REPORT == 0:
            on_progress(number)
    figures = server.cache.snapshot()
    return summarize(
        trace,
        policy=policy,
        num_blocks=num_blocks,
        hit_blocks=hit_blocks,
        num_uncached=num_uncached,
        num_evictions=figures.num_evictions,
        num_evicted_blocks=figures.num_evicted_blocks,
        cost=cost,
    )


#: Often enough for a bar, and rare enough to cost nothing.
_REQUESTS_A_REPORT = 64


def _cost_of_blocks(cost: CostFit, block_size: int) -> CostFit:
    """Return what the cache's tokens cost, each of which is a block of the trace."""
    return CostFit(
        per_step=cost.per_step,
        per_token=cost.saved_s(0, block_size),
        per_pair=cost.per_pair * block_size**2,
    )


class _Server:
    """One cache and its clock."""

    __slots__ = ("_block_size", "_fingerprint", "_now", "_num_blocks", "cache")

    def __init__(
        self, policy: str, num_blocks: int, block_size: int, begin_at: float
    ) -> None:
        self._now = begin_at
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._fingerprint = _fingerprint_of_no_model()
        # The one place where a trace's blocks become the cache's.
        self.cache = PrefixCache(
            num_blocks=num_blocks, block_size=1, policy=policy, clock=lambda: self._now
        )

    def advance_to(self, now: float) -> None:
        if now < self._now:
            raise InvalidInputError(
                f"a trace's requests must be in order: one that arrives at {now} s comes "
                f"after one of {self._now} s"
            )
        self._now = now

    def serve(self, request: TraceRequest) -> int | None:
        """Serve a prompt; return the blocks it hits, or None if it is too large."""
        block_ids = request.block_ids()
        num_blocks = len(block_ids)
        if num_blocks > self._num_blocks:
            return None
        tokens = np.concatenate([block_ids, _LAST_TOKEN])
        lease = self.cache.acquire(self._fingerprint, _DOMAIN, tokens)
        num_hits = lease.num_matched_tokens
        lease.recorded = Recorded(
            num_prompt_tokens=request.num_prompt_tokens,
            num_reply_tokens=request.num_output_tokens,
            tokens_per_position=self._block_size,
        )
        self.cache.reserve(lease, num_blocks)
        self.cache.commit(lease, tokens, num_blocks)
        self.cache.release(lease, tokens, num_blocks)
        return num_hits


def _fingerprint_of_no_model() -> Fingerprint:
    return Fingerprint(
        architecture="replay",
        config=b"",
        weights=b"",
        tokenizer=b"",
        chat_template=None,
        adapter=None,
        position_config=b"",
        position_offset=0,
        compute_dtype="none",
        kv_dtype="none",
        block_size=1,
        layout_version=1,
        numerics=b"",
    )
