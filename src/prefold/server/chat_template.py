"""Chat templates: a conversation and tools in, the token ids of the prompt out.

The same conversation must always become the same tokens, or no prefix of it is found
again. So the tools' keys are put into one order, at every level: clients write them in
any. Lists keep theirs, which has a meaning.

What a template leaves out without a word is refused: a role it does not know, or tools.
A system message is never moved into another one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from prefold.errors import RequestError
from prefold.server.protocol_chat import (
    AssistantMessage,
    Message,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
)

#: What the code of a template can raise, apart from what templates raise on purpose.
_TEMPLATE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

#: Roles that every template knows, and may show in part: the thoughts of an earlier
#: reply are often left out.
_KNOWN_ROLES = frozenset({"user", "assistant"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages and tools as a template is given them.

    Attributes:
        messages: Objects with ``role``, ``content`` as one text, and what else there is.
        tools: Descriptions of functions, their keys in order.
        awaits_reply: Whether a reply is to follow, which the template opens, or more
            messages may.
    """

    messages: Sequence[dict[str, object]] = field(repr=False)
    tools: Sequence[object] = field(default=(), repr=False)
    awaits_reply: bool = True


class ChatTemplate:
    """Writes the prompts of one model. May be used by several threads."""

    __slots__ = ("_knows_tools", "_source", "_tokenizer")

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._source = str(tokenizer.chat_template)
        self._knows_tools = False

    def encode(self, conversation: Conversation) -> list[int]:
        """Return the token ids of the prompt for the next reply, or of its beginning.

        Raises:
            RequestError: There is no template, or it refuses the conversation or leaves
                a part of it out.
        """
        # A template writes its special tokens itself.
        text = self.render(conversation)
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def render(self, conversation: Conversation) -> str:
        """Return the text of the prompt for the next reply, or of its beginning.

        Raises:
            RequestError: As ``encode``.
        """
        if self._tokenizer.chat_template is None:
            raise RequestError(
                "the model has no chat template; send a prompt to /v1/completions instead"
            )
        text = self._apply(conversation)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "a text of the conversation or its tools holds half of a surrogate pair; "
                "send whole characters"
            ) from error
        self._check_messages(conversation, text)
        self._check_tools(conversation, text)
        return text

    def _apply(self, conversation: Conversation) -> str:
        try:
            # Typed for texts alone, but messages may hold calls, and tools are any JSON.
            text = self._tokenizer.apply_chat_template(
                list(conversation.messages),  # type: ignore[arg-type]
                # None is what templates look for where there are none.
                tools=list(conversation.tools) or None,  # type: ignore[arg-type]
                tokenize=False,
                add_generation_prompt=conversation.awaits_reply,
            )
        except TemplateError as error:
            raise self._refused(error) from error
        except _TEMPLATE_FAULTS as error:
            raise RequestError(
                "the model's chat template fails on this conversation with "
                f"{type(error).__name__}; try other roles, or messages of plain text only"
            ) from error
        if not isinstance(text, str):
            raise RequestError("the model's chat template makes no text")
        return text

    def _refused(self, error: TemplateError) -> RequestError:
        reason = str(error.message or "")
        # A template may quote the conversation; what stands in it word for word does not.
        shown = reason if reason and reason in self._source else type(error).__name__
        return RequestError(
            f"the model's chat template refuses this conversation ({shown}); change the "
            "roles or their order"
        )

    def _check_messages(self, conversation: Conversation, text: str) -> None:
        """Refuse a conversation of which the template has left out a message."""
        checked: set[object] = set(_KNOWN_ROLES)
        for index, message in enumerate(conversation.messages):
            role = message["role"]
            if role in checked or _is_shown(message["content"], text):
                continue
            # Once for each role: rendering again is what this costs.
            checked.add(role)
            rest = [m for at, m in enumerate(conversation.messages) if at != index]
            shorter = replace(conversation, messages=rest)
            if not rest or self._is_equal(shorter, text):
                raise RequestError(
                    f"the model's chat template leaves out messages[{index}], of the role "
                    f"{role!r}; give it another role or place"
                )

    def _check_tools(self, conversation: Conversation, text: str) -> None:
        if self._knows_tools or not conversation.tools:
            return
        if self._is_equal(replace(conversation, tools=()), text):
            raise RequestError(
                "the model's chat template has no place for tools; describe them in a "
                "message instead"
            )
        self._knows_tools = True

    def _is_equal(self, shorter: Conversation, text: str) -> bool:
        try:
            return self._apply(shorter) == text
        except RequestError:
            return False  # the template cannot do without it, so it looks at it


def to_conversation(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    *,
    awaits_reply: bool = True,
) -> Conversation:
    """Return the parts of a request as a template is given them.

    Raises:
        RequestError: A message has neither content nor calls, or a tool has a number
            that JSON does not have.
    """
    return Conversation(
        messages=[_to_object(index, message) for index, message in enumerate(messages)],
        tools=[
            canonical(tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}}))
            for tool in tools or ()
        ],
        awaits_reply=awaits_reply,
    )


def canonical(value: object) -> object:
    """Return a JSON value with the keys of its objects in order, at every level.

    Numbers stay what they are, ``1`` and ``1.0`` two of them, and lists keep their order.

    Raises:
        RequestError: A number in it is none that JSON has.
    """
    match value:
        case dict():
            return {key: canonical(value[key]) for key in sorted(value)}
        case list():
            return [canonical(item) for item in value]
        case float() if not math.isfinite(value):
            raise RequestError("tools: every number must be finite")
    return value


def _to_object(index: int, message: Message) -> dict[str, object]:
    found: dict[str, object] = {
        "role": message.role,
        "content": _to_text(message.content),
    }
    if message.name is not None:
        found["name"] = message.name
    match message:
        case AssistantMessage(tool_calls=calls) if calls:
            found["tool_calls"] = [_to_call(call) for call in calls]
        case AssistantMessage(content=None):
            raise RequestError(f"messages[{index}] needs content or tool_calls")
        case ToolMessage():
            found["tool_call_id"] = message.tool_call_id
    return found


def _to_text(content: str | list[TextPart] | None) -> str:
    match content:
        case str():
            return content
        case None:
            return ""
    return "\n".join(part.text for part in content)


def _to_call(call: ToolCall) -> dict[str, object]:
    return {
        "id": call.id,
        "type": call.type,
        "function": {
            "name": call.function.name,
            "arguments": _to_arguments(call.function.arguments),
        },
    }


def _to_arguments(text: str) -> object:
    """Return arguments as templates expect them: an object, if the model wrote one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def _is_shown(content: object, text: str) -> bool:
    """Tell whether a message's text is in a prompt, as it is or as JSON."""
    shown = str(content).strip()
    return not shown or shown in text or json.dumps(shown, ensure_ascii=False)[1:-1] in text
