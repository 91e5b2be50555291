"""The chat route's reply: messages, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from prefold.engine.logprobs import TokenLogprob
from prefold.engine.request import RequestOutput, Usage
from prefold.server.calls import CallEvent
from prefold.server.logprobs import TokenTexts, to_chat_logprobs
from prefold.server.protocol_chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
)
from prefold.server.replies import (
    CHARACTERS_A_TOKEN,
    ReplyHead,
    to_finish_reason,
    to_usage,
)


class ChatReply:
    """Makes the choices of one call into a reply.

    Args:
        head: Of the reply.
        num_choices: How many there are.
        texts: Of tokens, if their log-probabilities are wanted.
        num_top: Alternatives that are wanted of each token.
        wants_usage: Whether a stream ends with the count of tokens.
    """

    __slots__ = ("_head", "_num_choices", "_texts", "_wants_usage", "_width")

    def __init__(
        self,
        head: ReplyHead,
        num_choices: int,
        texts: TokenTexts | None,
        *,
        num_top: int,
        wants_usage: bool,
    ) -> None:
        self._head = head
        self._num_choices = num_choices
        self._texts = texts
        self._width = 1 + num_top
        self._wants_usage = wants_usage

    def size(self, usage: Usage) -> int:
        """Return what the whole of it costs to make, in characters read."""
        if self._texts is None:
            return 0
        return usage.completion_tokens * self._width * CHARACTERS_A_TOKEN

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> ChatCompletion:
        """Return the whole reply; outputs are in the order of choices."""
        head = self._head
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[
                ChatChoice(
                    index=index,
                    message=ChatMessage(content=output.text),
                    logprobs=self._logprobs(output.logprobs or ()),
                    finish_reason=to_finish_reason(output.finish_reason),
                )
                for index, output in enumerate(outputs)
            ],
            usage=to_usage(usage),
        )

    def begin(self) -> list[BaseModel]:
        """Return each choice's first piece, which says whose words follow."""
        delta = ChatDelta(role="assistant", content="")
        return [
            self._chunk(ChatChunkChoice(index=index, delta=delta, finish_reason=None))
            for index in range(self._num_choices)
        ]

    def size_of(self, event: CallEvent) -> int:
        """Return what writing an event costs: never much, it is one token."""
        del event
        return 0

    def write(self, event: CallEvent) -> list[BaseModel]:
        """Return the pieces that an event becomes."""
        pieces: list[BaseModel] = []
        token, output = event.token, event.output
        if token is not None and (token.text or token.logprob is not None):
            entries = () if token.logprob is None else (token.logprob,)
            pieces.append(
                self._chunk(
                    ChatChunkChoice(
                        index=event.choice,
                        delta=ChatDelta(content=token.text),
                        logprobs=self._logprobs(entries),
                        finish_reason=None,
                    )
                )
            )
        if output is not None:
            reason = to_finish_reason(output.finish_reason)
            pieces.append(
                self._chunk(
                    ChatChunkChoice(
                        index=event.choice, delta=ChatDelta(), finish_reason=reason
                    )
                )
            )
        return pieces

    def end(self, usage: Usage) -> list[BaseModel]:
        """Return the count of tokens, if it is wanted."""
        return [self._chunk(None, usage)] if self._wants_usage else []

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return None if self._texts is None else to_chat_logprobs(self._texts, entries)

    def _chunk(
        self, choice: ChatChunkChoice | None, usage: Usage | None = None
    ) -> ChatChunk:
        head = self._head
        chunk = ChatChunk(
            id=head.id,
            object="chat.completion.chunk",
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=[] if choice is None else [choice],
        )
        if not self._wants_usage:
            return chunk
        counted = None if usage is None else to_usage(usage)
        return chunk.model_copy(update={"usage": counted})
