"""Replies: what the answers of both completion routes have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from starlette.responses import Response

from prefold.cache import MissReason
from prefold.engine.request import FinishReason, Usage
from prefold.server.protocol import PromptTokensDetails, UsageReply
from prefold.server.protocol_chat import ChatCompletion
from prefold.server.protocol_completions import Completion
from prefold.server.served_model import ServedModel
from prefold.server.streaming import CACHED_TOKENS_HEADER

#: Why no more of the prompt hit, and from which token on.
MISS_HEADER = "x-prefold-miss"

#: Saying what is known of a token takes as long as reading so many characters.
CHARACTERS_A_TOKEN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What every piece of one reply begins with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class ReplyHeads:
    """Makes the heads of new replies.

    Args:
        model: What the replies are of.
        clock: Seconds since 1970.
        new_id: Makes random ids; a number would tell a client how much others ask.
    """

    __slots__ = ("_clock", "_model", "_new_id", "_system_fingerprint")

    def __init__(
        self,
        model: ServedModel,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._model = model
        self._clock = clock
        self._new_id = new_id
        self._system_fingerprint = model.system_fingerprint

    def of(self, model: ServedModel) -> ReplyHeads:
        """Return what makes the heads of another model's replies."""
        if model is self._model:
            return self
        return ReplyHeads(model, clock=self._clock, new_id=self._new_id)

    def make(self, prefix: str) -> ReplyHead:
        """Return the head of a new reply, whose id begins with ``prefix``."""
        return ReplyHead(
            id=f"{prefix}-{self._new_id()}",
            created=int(self._clock()),
            model=self._model.name,
            system_fingerprint=self._system_fingerprint,
        )


def to_usage(usage: Usage) -> UsageReply:
    """Return a call's tokens as clients read them."""
    return UsageReply(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )


def to_finish_reason(reason: FinishReason) -> Literal["stop", "length"]:
    """Return how a choice ended that ended well."""
    return "stop" if reason is FinishReason.STOP else "length"


def to_answer(
    reply: ChatCompletion | Completion, usage: Usage, miss: MissReason | None
) -> Response:
    """Return a whole reply as an answer; ``miss`` is of its prompt, if it has only one.

    Choices are written one by one: nothing else runs while one call writes, and a large
    reply takes it a quarter of a second.
    """
    choices = ",".join(choice.model_dump_json() for choice in reply.choices)
    rest = reply.model_copy(update={"choices": []}).model_dump_json()
    # No text has this in it: there, quotes are escaped.
    before, after = rest.split('"choices":[]')
    headers = {CACHED_TOKENS_HEADER: str(usage.cached_tokens)}
    if miss is not None:
        # What it is and where. When it was lost, and for whom, is not its client's to know.
        headers[MISS_HEADER] = f"{miss.kind.value}; at_token={miss.at_token}"
    return Response(
        f'{before}"choices":[{choices}]{after}',
        media_type="application/json",
        headers=headers,
    )
