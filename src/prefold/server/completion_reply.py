"""The completions route's reply: choices of text, whole or in pieces.

With ``echo`` a choice begins with its prompt. What is known of the prompt's tokens comes
with the choice's end, so a stream of a choice with both ``echo`` and ``logprobs`` keeps
its pieces until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from prefold.blocks.table import TokenIds
from prefold.engine.request import RequestOutput, Usage
from prefold.server.calls import CallEvent
from prefold.server.logprobs import Echo, LegacyLogprobs
from prefold.server.protocol_completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
)
from prefold.server.replies import (
    CHARACTERS_A_TOKEN,
    ReplyHead,
    to_finish_reason,
    to_usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompt:
    """A prompt's tokens, and how it looks if it is to be echoed."""

    token_ids: TokenIds = field(repr=False)
    echo: Echo | None


class CompletionReply:
    """Makes the choices of one call into a reply.

    Args:
        head: Of the reply.
        prompts: One for each choice.
        collected: One for each choice, or nothing if no log-probabilities are wanted.
        wants_usage: Whether a stream ends with the count of tokens.
    """

    __slots__ = ("_collected", "_head", "_held", "_prompts", "_wants_usage")

    def __init__(
        self,
        head: ReplyHead,
        prompts: Sequence[ReadPrompt],
        collected: Sequence[LegacyLogprobs],
        *,
        wants_usage: bool,
    ) -> None:
        self._head = head
        self._prompts = prompts
        self._collected = collected
        self._wants_usage = wants_usage
        #: By choice, tokens that wait for what is known of the prompt.
        self._held: list[list[CallEvent]] = [[] for _ in prompts]

    # -- whole ---------------------------------------------------------------------

    def size(self, usage: Usage) -> int:
        """Return what the whole of it costs to make, in characters read."""
        if not self._collected:
            return 0
        num_prompt = sum(len(prompt.token_ids) for prompt in self._prompts)
        return (num_prompt + usage.completion_tokens) * CHARACTERS_A_TOKEN

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> Completion:
        """Return the whole reply; outputs are in the order of choices."""
        for index, output in enumerate(outputs):
            self._add_prompt(index, output)
            for entry in output.logprobs or ():
                self._collected[index].add(entry)
        choices = [
            CompletionChoice(
                index=index,
                text=self._echo(index) + output.text,
                logprobs=self._take(index),
                finish_reason=to_finish_reason(output.finish_reason),
            )
            for index, output in enumerate(outputs)
        ]
        return self._piece(choices, usage)

    # -- in pieces -----------------------------------------------------------------

    def begin(self) -> list[BaseModel]:
        """Return the prompts, where they are echoed and nothing more is said of them."""
        if self._collected:
            return []
        return [
            self._chunk(index, self._echo(index))
            for index in range(len(self._prompts))
            if self._echo(index)
        ]

    def size_of(self, event: CallEvent) -> int:
        """Return what writing an event costs: with the end of an echo, all of it."""
        if event.output is None or not self._collected:
            return 0
        num_held = len(self._held[event.choice])
        num_prompt = len(self._prompts[event.choice].token_ids)
        return (num_held + num_prompt) * CHARACTERS_A_TOKEN

    def write(self, event: CallEvent) -> list[BaseModel]:
        """Return the pieces that an event becomes."""
        index, output = event.choice, event.output
        is_held = bool(self._collected) and self._prompts[index].echo is not None
        if output is None:
            if not is_held:
                return self._token(event)
            self._held[index].append(event)
            return []
        pieces: list[BaseModel] = []
        if is_held:
            self._add_prompt(index, output)
            pieces.append(self._chunk(index, self._echo(index)))
            for held in self._held[index]:
                pieces += self._token(held)
            self._held[index] = []
        pieces += self._token(event)
        pieces.append(self._chunk(index, "", output))
        return pieces

    def end(self, usage: Usage) -> list[BaseModel]:
        """Return the count of tokens, if it is wanted."""
        return [self._piece([], usage)] if self._wants_usage else []

    # -- parts ---------------------------------------------------------------------

    def _echo(self, index: int) -> str:
        echo = self._prompts[index].echo
        return "" if echo is None else echo.text

    def _token(self, event: CallEvent) -> list[BaseModel]:
        token = event.token
        if token is None:
            return []
        if self._collected and token.logprob is not None:
            self._collected[event.choice].add(token.logprob)
        elif not token.text:
            return []
        return [self._chunk(event.choice, token.text)]

    def _add_prompt(self, index: int, output: RequestOutput) -> None:
        prompt = self._prompts[index]
        if prompt.echo is not None and output.prompt_logprobs is not None:
            self._collected[index].add_prompt(
                prompt.echo, prompt.token_ids.tolist(), output.prompt_logprobs
            )

    def _take(self, index: int) -> CompletionLogprobs | None:
        return self._collected[index].take() if self._collected else None

    def _chunk(
        self, index: int, text: str, output: RequestOutput | None = None
    ) -> Completion:
        reason = None if output is None else to_finish_reason(output.finish_reason)
        choice = CompletionChoice(
            index=index, text=text, logprobs=self._take(index), finish_reason=reason
        )
        return self._piece([choice], None)

    def _piece(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        head = self._head
        piece = Completion(
            id=head.id,
            object="text_completion",
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
        )
        if usage is None and not self._wants_usage:
            return piece
        counted = None if usage is None else to_usage(usage)
        return piece.model_copy(update={"usage": counted})
