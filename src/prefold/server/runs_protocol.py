"""Protocol of browsing: runs a few at a time, searches, and the page's figures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from prefold.cache.approval import MAX_LABEL_LENGTH
from prefold.identity.domain import MAX_PATH_LENGTH
from prefold.server.admin_protocol import BlockFigures
from prefold.server.protocol import DomainPath, ReplyModel, StrictModel
from prefold.server.sharing_protocol import PrefixRequest

#: As the cache gives them out: a random stem and a number.
RunId = Annotated[str, Field(min_length=1, max_length=64)]


class RunApprovalReply(ReplyModel):
    """An approval that a run is part of."""

    id: str
    label: str
    pinned: bool


class RunReply(ReplyModel):
    """A run of cached blocks: tokens that some prompts have in common."""

    id: str
    """Names it while it is there, in this process; says nothing of its content."""
    path: list[str]
    """Ids of the runs that it continues, from the beginning on."""
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
    domain: str
    is_salted: bool
    """Whether a salt, which is never shown, narrows the domain."""
    leases: int
    """Running requests that use it."""
    hits: int
    """Requests that began by matching it."""
    forks: int
    """Requests that went on differently after it, or inside."""
    idle_s: float
    """Since a request last began or ended to use it."""
    age_s: float
    """Since its oldest block was left behind."""
    expires_in_s: float | None
    """Until it cannot be reused any more, unless it is used; null for never."""
    priority: int
    """Of two idle runs of one tenant, the lower one goes first."""
    children: int
    """Runs that continue it; dropped ones that are not freed yet included."""
    pinned: bool
    """Whether it is kept from eviction."""
    is_pin: bool
    """Whether that is because an operator pinned it, and not only what goes on after it."""
    approvals: list[RunApprovalReply]
    """Those that let its readers read it."""
    text: str | None
    """How it begins; only where the configuration allows to show text of prompts."""


class RunPageReply(ReplyModel):
    """Runs that continue one run, newest first."""

    object: Literal["list"] = "list"
    data: list[RunReply]
    children: int
    """All there are; dropped ones that are not freed yet included."""
    next: str | None
    """The ``cursor`` of the next page; null after the last."""


class SearchRequest(PrefixRequest):
    """What to look for: runs of a domain, or those that a prompt leads to, or both."""

    domain: Annotated[str, Field(max_length=MAX_PATH_LENGTH)] | None = None
    """Part of the paths of the domains that are meant."""
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    """Runs at most."""


class FoundRunReply(ReplyModel):
    """A run that was found."""

    run: RunReply
    matched_tokens: int | None
    """Up to where the prompt and the run agree, from the prompt's beginning on."""


class SearchReply(ReplyModel):
    """Runs that were found: the longest agreement or the most hits first."""

    object: Literal["list"] = "list"
    data: list[FoundRunReply]
    prompt_tokens: int | None
    """Of the prompt that was looked for."""
    is_complete: bool
    """Whether everything was looked at, and all that was found is here."""


class ApproveRunRequest(StrictModel):
    """How a run, and all that it continues, is to be shared."""

    label: Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH)]
    """What people call it; unique in the domain."""
    domain: DomainPath | None = None
    """The run's own or one below it, which is what it is approved for; its own if left
    out. For a wider one, approve the text itself."""
    pinned: bool = False
    """Whether it is never evicted."""
    ttl_s: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Seconds after which the approval ends by itself; never if left out."""


class PinRequest(StrictModel):
    """What is to be pinned, or not any more."""

    run: RunId
    """Its id. All that it continues is pinned with it."""


class PinReply(ReplyModel):
    """The budget of pins, afterwards."""

    num_pinned_blocks: int
    max_pinned_blocks: int


class HitFigures(ReplyModel):
    """What the requests of some seconds asked for, and what of it was cached."""

    age_s: float
    """Seconds ago that it ended; 0 while it goes on."""
    requests: int
    prompt_tokens: int
    hit_tokens: int


class FirstTokenFigures(ReplyModel):
    """Times to first token of the last requests of one kind."""

    hit: str
    """What part of the prompt was reused: none, partial or full."""
    requests: int
    """At most 500, the last ones."""
    p50_s: float | None
    p95_s: float | None


class FiguresReply(ReplyModel):
    """What the page shows of this moment."""

    model: str
    fingerprint: str
    is_accepting: bool
    blocks: BlockFigures
    block_size: int
    block_bytes: int | None
    """Null where the model was not loaded from anywhere."""
    num_runs: int
    """Dropped ones that are not freed yet included."""
    num_pinned_blocks: int
    max_pinned_blocks: int
    num_evicted_blocks: int
    running: int
    waiting: int
    bucket_s: float
    """How many seconds each of ``hits`` is about."""
    hits: list[HitFigures]
    """The last ten minutes, oldest first; without requests there is none."""
    first_token: list[FirstTokenFigures]
    tenants: list[str]
    shows_text: bool
    """Whether the configuration allows to show text of prompts."""
    views: list[str]
    """Which of the page's other figures this server has."""
