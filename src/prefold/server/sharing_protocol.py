"""Protocol of sharing: approvals, selectors and revocations on the admin plane."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from prefold.cache.approval import MAX_LABEL_LENGTH
from prefold.server.admin_protocol import ReceiptReply
from prefold.server.config import nearest
from prefold.server.protocol import DomainPath, ReplyModel, StrictModel, explained
from prefold.server.protocol_chat import Messages, Tools
from prefold.server.protocol_prompts import Prompt

_Seconds = Annotated[float, Field(ge=0, le=1e12)]
_Id = Annotated[str, Field(min_length=1, max_length=64)]


class PrefixRequest(StrictModel):
    """What prompts begin with: a text or token ids, or the beginning of a conversation."""

    prompt: Prompt | None = None
    messages: Messages | None = None
    """In place of ``prompt``; more may follow, so no reply is opened after them."""
    tools: Tools | None = None
    """With ``messages``."""


class ApproveRequest(PrefixRequest):
    """A prefix, and whose requests are to share it."""

    domain: DomainPath
    """Its readers are this domain and all below it; all there are, if it is public."""
    label: Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH)]
    """What people call it; unique in the domain."""
    pinned: bool = False
    """Whether it is never evicted."""
    ttl_s: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Seconds after which the approval ends by itself; never if left out."""


class ApprovalReply(ReplyModel):
    """An approval that holds."""

    id: str
    label: str
    domain: str
    tokens: int
    """Those of whole blocks; what is left over is not shared."""
    blocks: int
    pinned: bool
    expires_in_s: float | None


class ApprovalsReply(ReplyModel):
    """Approvals that hold, oldest first."""

    approvals: list[ApprovalReply]


class WithdrawRequest(StrictModel):
    """Which approval is to end."""

    id: _Id


class InvalidateRequest(PrefixRequest):
    """What is to be dropped: exactly one selector.

    That is ``everything``, ``domain``, ``approval``, ``prompt`` or ``messages``,
    ``older_than_s``, or ``field`` with ``value``.
    """

    everything: Annotated[
        Literal[True] | None, explained("must be true, or be left out")
    ] = None
    domain: DomainPath | None = None
    """What it wrote, what is approved for it, and what hangs below. With a prompt: only
    what it has of those that begin so; everybody's if left out."""
    below: bool = True
    """With ``domain`` alone: whether all domains below it are meant too."""
    approval: _Id | None = None
    """The id of one."""
    older_than_s: _Seconds | None = None
    """Seconds since it was left behind."""
    field: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Of the fingerprint, such as weights, tokenizer or chat_template."""
    value: Annotated[
        Annotated[str, Field(max_length=256)] | int | None,
        explained("must be a text, a whole number or null"),
    ] = None
    """With ``field``: digests as hexadecimal digits; ``current`` for what is served now."""

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, data: Any) -> Any:
        """Say which selector may be meant by one that there is not."""
        known = list(cls.model_fields)
        for name in data if isinstance(data, dict) else ():
            if name not in known:
                raise PydanticCustomError(
                    "unknown_field",
                    "there is no such selector; {meant}",
                    {"meant": nearest(str(name), known), "name": _shown(name)},
                )
        return data


class RevokedReply(ReceiptReply):
    """The receipt of a revocation."""

    domain: str
    requests: Literal["abort", "drain"]
    revoked_keys: int
    """API keys that were taken out of the key file."""
    aborted_requests: int
    """Replies that were being made, or waited, and were ended."""
    draining_requests: int
    """Replies that finish, and leave nothing behind."""


def _shown(name: object) -> str | None:
    # Only what looks like a field's name is repeated.
    return (
        name if isinstance(name, str) and name.isidentifier() and len(name) < 65 else None
    )
