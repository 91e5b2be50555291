"""Protocol of miss reasons on the admin plane: what is answered of them."""

from __future__ import annotations

from typing import Literal

from prefold.server.protocol import ReplyModel


class CulpritReply(ReplyModel):
    """What differs where a prompt parts from an earlier one."""

    kind: str
    detail: str
    """As a subject, such as "the clock's seconds"; never text of a prompt."""


class ReasonReply(ReplyModel):
    """The one primary reason of a prompt's first missed token."""

    kind: str
    at_token: int
    """Leading tokens that agree with something cached."""
    sentence: str
    culprit: CulpritReply | None


class MissRow(ReplyModel):
    """A prompt that missed something."""

    request_id: str
    tenant: str | None
    at: float
    """When it came, in seconds since 1970."""
    prompt_tokens: int
    hit_tokens: int
    reason: ReasonReply


class MissesReply(ReplyModel):
    """The last prompts that missed something, newest first."""

    object: Literal["list"] = "list"
    data: list[MissRow]


class DivergedText(ReplyModel):
    """The text around the place where two prompts part."""

    before: str
    """What both have in front of it."""
    earlier: str
    later: str


class EarlierRequest(ReplyModel):
    """The earlier request of the same domain that a prompt agrees with longest."""

    request_id: str
    at: float
    common_tokens: int
    text: DivergedText | None
    """None unless the server may show text of prompts."""


class ExplainedPrompt(ReplyModel):
    """One prompt of a request, and why no more of it hit."""

    at: float
    prompt_tokens: int
    hit_tokens: int
    reason: ReasonReply
    advice: str | None
    """What to change; None where there is nothing."""
    lost_at: float | None
    """When what it asked for was lost, in seconds since 1970."""
    lost_blocks: int
    policy: str | None
    """The eviction policy that chose it."""
    pressure: Literal["own", "share", "pool"] | None
    """For whom it was evicted: the same tenant, its own maximum, or all of the pool."""
    selector: str | None
    """What kind of selector invalidated it."""
    differing_fields: list[str]
    """Fields of the fingerprint."""
    earlier: EarlierRequest | None


class ExplainReply(ReplyModel):
    """Why a request missed: each of its prompts, in their order."""

    request_id: str
    tenant: str
    prompts: list[ExplainedPrompt]
