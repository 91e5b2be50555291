"""Protocol of the admin plane: what operators send, and what they are told."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from prefold.blocks.pool import BlockCounts
from prefold.server.protocol import (
    CachePriority,
    DomainPath,
    ReplyModel,
    StrictModel,
    TtlSeconds,
)
from prefold.server.protocol_chat import Messages, Tools
from prefold.server.protocol_prompts import Prompts

#: As on the public plane.
_MAX_SALT_BYTES = 256


def _check_salt(salt: str) -> str:
    if not 0 < len(salt.encode()) <= _MAX_SALT_BYTES:
        raise PydanticCustomError("explained", "must be a text of 1 to 256 bytes of UTF-8")
    return salt


class PromptRequest(StrictModel):
    """Prompts, and whose requests are to find what is cached of them.

    They are read as the public plane reads those of the same tenant: ``prompt`` as
    ``/v1/completions``, ``messages`` and ``tools`` as ``/v1/chat/completions``.
    """

    prompt: Prompts | None = None
    messages: Messages | None = None
    """In place of ``prompt``."""
    tools: Tools | None = None
    """With ``messages``."""
    tenant: str | None = None
    """Its name; may be left out where there is one."""
    domain: DomainPath | None = None
    """The tenant's own or one below it, as their requests will give it."""
    cache_salt: (
        Annotated[
            str,
            Field(min_length=1, max_length=_MAX_SALT_BYTES),
            AfterValidator(_check_salt),
        ]
        | None
    ) = None
    """As their requests will give it."""
    adapter: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The name of the adapter that their requests will give as ``model``."""


class WarmRequest(PromptRequest):
    """Prompts that are computed now, and how what is left of them is kept."""

    ttl_s: TtlSeconds | None = None
    """As ``cache.ttl_s`` of their requests."""
    priority: CachePriority = 0
    """As ``cache.priority`` of their requests."""


class EmptyRequest(StrictModel):
    """Nothing: ``{}``."""


class WarmedPrompt(ReplyModel):
    """What became of one prompt."""

    prompt_tokens: int
    cached_tokens: int
    """Of those, the ones that were cached before."""
    hit_tokens: int
    """What an equal request would hit now; fewer than all where there was no room."""


class WarmReply(ReplyModel):
    """One for each prompt, in their order."""

    prompts: list[WarmedPrompt]


class FoundPrompt(ReplyModel):
    """What a request would hit at this moment."""

    prompt_tokens: int
    hit_tokens: int
    miss: str
    """Why not more: a word for programs."""
    explanation: str
    """The same as a sentence."""


class LookupReply(ReplyModel):
    """One for each prompt, in their order."""

    prompts: list[FoundPrompt]


class ReceiptReply(ReplyModel):
    """What became unreachable. It holds from the moment of the answer."""

    dropped_blocks: int
    """Blocks that no request finds any more."""
    leased_blocks: int
    """Of those, the ones that running requests still use until they end."""
    is_upper_bound: bool
    """Whether the numbers are "at most"."""
    ended_approvals: int
    """Approvals that ended with it."""
    num_invalidations: int
    """Since the start, this one included."""


class BlockFigures(ReplyModel):
    """Blocks by state."""

    free: int
    private: int
    shared: int
    idle: int
    total: int

    @classmethod
    def of(cls, counts: BlockCounts, total: int) -> BlockFigures:
        return cls(
            free=counts.free,
            private=counts.private,
            shared=counts.shared,
            idle=counts.idle,
            total=total,
        )


class ShareFigures(ReplyModel):
    """What one tenant has of the idle blocks, and may have."""

    tenant: str | None
    """Null for a domain with a share that is no tenant's."""
    domain: str
    idle_blocks: int
    """Those included that nobody finds any more and that are not freed yet."""
    reserved_blocks: int
    """Idle blocks that nobody else's need takes."""
    max_idle_blocks: int
    """Above it, its own go at once."""


class CostFigures(ReplyModel):
    """What prefill takes, fitted to the last steps."""

    token_s: float
    """Seconds for a token at the beginning of a prompt."""
    depth_s: float
    """Seconds more for each 1,000 tokens before it."""


class StatsReply(ReplyModel):
    """Figures of one moment; counters are sums since the start."""

    model: str
    fingerprint: str
    blocks: BlockFigures
    block_size: int
    capacity_tokens: int
    num_trees: int
    num_runs: int
    num_leases: int
    num_approvals: int
    num_pinned_blocks: int
    """Of all blocks, those that approvals keep from eviction."""
    max_pinned_blocks: int
    policy: str
    """What goes first when blocks run out."""
    shares: list[ShareFigures]
    num_others_idle_blocks: int
    """Of whoever has no share."""
    num_approved_idle_blocks: int
    """Of approved prefixes, which are nobody's alone."""
    prefill_cost: CostFigures | None
    """Null before enough of it was measured."""
    num_evictions: int
    num_evicted_blocks: int
    num_steps: int
    num_computed_tokens: int
    num_hit_tokens: int
    """Those that a preempted sequence found again included."""
    num_sampled_tokens: int
    num_admissions: int
    num_preemptions: int
    num_failed_steps: int
    num_regretted_tokens: int
    """Prompt tokens computed that had been cached before, and were evicted."""
    regretted_prefill_s: float
    """What computing those took, as far as it is known."""


class Run(ReplyModel):
    """A run of cached blocks: tokens that some prompts have in common."""

    parent: int | None
    """Index of the run that it continues; null for none."""
    depth: int
    fingerprint: int
    """Number of the fingerprint that it was computed under."""
    start: int
    """Position of its first token."""
    tokens: int
    blocks: int
    is_partial: bool
    """Whether its one block is filled in part only."""
    audience: str
    """Who may read it: own, approved or throwaway."""
    approvals: list[str]
    """Labels of the approvals that let its readers read it."""
    domain: str
    is_salted: bool
    """Whether a salt, which is never shown, narrows the domain."""
    leases: int
    """Running requests that use it."""
    hits: int
    """Requests that began by matching it."""
    idle_s: float
    """Since a request last began or ended to use it."""
    children: int
    """Runs that continue it, listed or not."""
    text: str | None
    """Only where the configuration allows to show text of prompts."""


class TreeReply(ReplyModel):
    """Cached runs, parents before children."""

    runs: list[Run]
    num_runs: int
    """All there are, those that nobody can find any more included."""
    is_complete: bool
    """Whether all that can be found are listed."""


class QueueReply(ReplyModel):
    """Who is served and who waits."""

    waiting: int
    running: int
    max_queued: int
    is_accepting: bool


class HealthReply(ReplyModel):
    """How the server does."""

    status: str


class ChoiceTimes(ReplyModel):
    """One reply's figures; times are the engine's own, in seconds."""

    finish_reason: str
    hit: str
    """What part of the prompt was reused: none, partial or full."""
    miss: str | None
    """Why not more."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queued_s: float
    ttft_s: float | None
    tpot_s: float | None
    total_s: float


class TimingReply(ReplyModel):
    """A request's replies that have ended, in that order."""

    request_id: str
    tenant: str
    choices: list[ChoiceTimes]
