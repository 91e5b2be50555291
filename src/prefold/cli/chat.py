"""Chat: conversations made into the text and the tokens that a model is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from prefold.engine.prompt import check_text
from prefold.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One part of a conversation; the role is "system", "user" or "assistant"."""

    role: str
    content: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPrompt:
    """A prompt as the model sees it."""

    text: str = field(repr=False)
    token_ids: list[int] = field(repr=False)


class PromptWriter:
    """Writes conversations with one tokenizer.

    Args:
        tokenizer: The model's.
        chat: Whether its chat template is applied; ``None`` if there is one. Without,
            the parts follow each other with an empty line between them.

    Raises:
        ConfigError: The template is wanted, and there is none.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, chat: bool | None = None
    ) -> None:
        has_template = tokenizer.chat_template is not None
        if chat and not has_template:
            raise ConfigError("the model has no chat template; use --raw instead of --chat")
        self._tokenizer = tokenizer
        self.is_chat = has_template if chat is None else chat

    def write(self, messages: Sequence[Message]) -> WrittenPrompt:
        """Return the prompt for the next reply.

        Raises:
            RequestError: The template refuses the conversation.
        """
        if not self.is_chat:
            text = "\n\n".join(message.content for message in messages)
            return WrittenPrompt(text=text, token_ids=self._encode(text, is_chat=False))
        text = self._render(messages)
        return WrittenPrompt(text=text, token_ids=self._encode(text, is_chat=True))

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return self._apply(messages)
        except TemplateError as error:
            merged = _without_system(messages)
            if merged is None:
                raise _refused(error) from error
        try:
            return self._apply(merged)
        except TemplateError as error:
            raise _refused(error) from error

    def _apply(self, messages: Sequence[Message]) -> str:
        text = self._tokenizer.apply_chat_template(
            [{"role": part.role, "content": part.content} for part in messages],
            tokenize=False,
            add_generation_prompt=True,
        )
        if not isinstance(text, str):
            raise TypeError("a chat template made no text")
        return text

    def _encode(self, text: str, *, is_chat: bool) -> list[int]:
        check_text(text)
        # A template writes its special tokens itself.
        return list(self._tokenizer.encode(text, add_special_tokens=not is_chat))


def _without_system(messages: Sequence[Message]) -> list[Message] | None:
    """Put the system part before the first question, for templates that know none."""
    if len(messages) < 2 or messages[0].role != "system":
        return None
    first = Message(
        role=messages[1].role, content=f"{messages[0].content}\n\n{messages[1].content}"
    )
    return [first, *messages[2:]]


def _refused(error: TemplateError) -> RequestError:
    return RequestError(f"the model's chat template refuses this conversation: {error}")
