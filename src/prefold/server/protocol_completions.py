"""Protocol of ``/v1/completions``: text or token ids in, their continuation out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from prefold.server.protocol import (
    GenerationRequest,
    ReplyModel,
    UsageReply,
    explained,
)
from prefold.server.protocol_prompts import Prompts

#: What OpenAI gives where the request does not say.
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationRequest):
    """A body of ``POST /v1/completions``."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """16 if left out; 0 computes the prompt only."""
    echo: bool | None = None
    """Whether the reply begins with the prompt."""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    """Alternatives to report for each token; with ``echo`` for the prompt's as well."""
    best_of: Annotated[int, Field(ge=1)] | None = None
    """Must be equal to ``n``: replies are not ranked."""
    suffix: Annotated[None, explained("is not supported; put all text before the gap")] = (
        None
    )


class CompletionLogprobs(ReplyModel):
    """Log-probabilities as parallel lists, an item for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(ReplyModel):
    """One reply, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(ReplyModel):
    """An answer of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageReply | None = None
