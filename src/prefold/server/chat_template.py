"""Chat templates: a conversation and tools in, the token ids of the prompt out.

The same conversation must always become the same tokens, or no prefix of it is found
again. So the tools' keys are put into one order, at every level: clients write them in
any. Lists keep theirs, which has a meaning.

What a template leaves out without a word is refused: a role it does not know, or tools.
A system message is never moved into another one. To find out, the conversation is rendered
a second time, with a *sign* in place of each thing that was said::

    system: be rude      system: 7...01      is 7...01 in the text?
    user: don't be       user: 7...02        is 7...02?

Whether the words themselves are in the text would not tell: others may have said the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from prefold.engine.prompt import TEMPLATE_FAULTS
from prefold.errors import RequestError
from prefold.server.json_shape import JsonLimits, find_excess, find_total_excess
from prefold.server.protocol_chat import (
    AssistantMessage,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
)

#: What any message may say.
AnyContent = str | Sequence[TextPart] | Sequence[TextPart | ImagePart | FilePart] | None

#: Of the arguments of earlier calls, read as JSON: what a parser has to do for them.
_ARGUMENT_LIMITS = JsonLimits(max_depth=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages and tools as a template is given them.

    Attributes:
        messages: Objects with ``role``, ``content`` as one text or as parts of texts and
            images, and what else there is.
        tools: Descriptions of functions, their keys in order.
        awaits_reply: Whether a reply is to follow, which the template opens, or more
            messages may.
    """

    messages: Sequence[dict[str, object]] = field(repr=False)
    tools: Sequence[object] = field(default=(), repr=False)
    awaits_reply: bool = True


class ChatTemplate:
    """Writes the prompts of one model. May be used by several threads."""

    __slots__ = ("_source", "_tokenizer")

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._source = str(tokenizer.chat_template)

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
        self._check_complete(conversation)
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
        except TEMPLATE_FAULTS as error:
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

    def _check_complete(self, conversation: Conversation) -> None:
        """Refuse a conversation of which the template has left something out."""
        signed, signs = _signed(conversation)
        try:
            text = self._apply(signed)
        except RequestError:
            return  # it wants certain words in some place, so it looks at that
        for sign, complaint in signs.items():
            if sign not in text:
                raise RequestError(complaint)


def _signed(conversation: Conversation) -> tuple[Conversation, dict[str, str]]:
    """Return a conversation of signs, and a complaint for each that is not shown."""
    complaints: list[str] = []

    def sign(complaint: str) -> str:
        complaints.append(complaint)
        return _sign(len(complaints))

    messages = [
        _sign_message(index, message, sign)
        for index, message in enumerate(conversation.messages)
    ]
    tools = [_sign_tool(tool, sign) for tool in conversation.tools]
    signs = {_sign(number + 1): complaint for number, complaint in enumerate(complaints)}
    return replace(conversation, messages=messages, tools=tools), signs


def _sign(number: int) -> str:
    # Digits, which no template writes in another way, and nobody's text is among them.
    return f"73104609{number:012d}"


def _sign_message(
    index: int, message: dict[str, object], sign: Callable[[str], str]
) -> dict[str, object]:
    signed = dict(message)
    what = f"messages[{index}], of the role {message['role']!r}"
    lost = f"the model's chat template leaves out {what}; give it another role or place"
    content = message["content"]
    if isinstance(content, list):
        signed["content"] = [
            {**part, "text": sign(lost)} if part.get("text", "").strip() else part
            for part in content
        ]
    elif str(content).strip():
        signed["content"] = sign(lost)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        complaint = f"the model's chat template leaves out the calls of {what}"
        signed["tool_calls"] = [_sign_call(call, sign(complaint)) for call in calls]
    return signed


def _sign_call(call: dict[str, object], name: str) -> dict[str, object]:
    return {**call, "function": {"name": name, "arguments": {}}}


def _sign_tool(tool: object, sign: Callable[[str], str]) -> object:
    if not isinstance(tool, dict):
        raise TypeError("a tool is an object")
    complaint = (
        "the model's chat template has no place for tools in this conversation; describe "
        "them in a message instead"
    )
    return {**tool, "function": {**tool["function"], "name": sign(complaint)}}


def to_conversation(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    *,
    awaits_reply: bool = True,
    as_parts: bool = False,
) -> Conversation:
    """Return the parts of a request as a template is given them.

    Args:
        messages: Of the request.
        tools: Of the request.
        awaits_reply: Whether a reply is to follow.
        as_parts: Whether contents are lists of parts, as templates of models with images
            expect them, and images may be among them.

    Raises:
        RequestError: There is an image where none may be, a message has neither content
            nor calls, the arguments of calls are too many, or a tool has a number that
            JSON does not have.
    """
    _check_arguments(messages)
    return Conversation(
        messages=[
            _to_object(index, message, as_parts=as_parts)
            for index, message in enumerate(messages)
        ],
        tools=[
            canonical(tool.model_dump(exclude_unset=True, exclude={"function": {"strict"}}))
            for tool in tools or ()
        ],
        awaits_reply=awaits_reply,
    )


def _check_arguments(messages: Sequence[Message]) -> None:
    # They are texts to whoever checked the body, and parsed only here.
    texts = [
        call.function.arguments.encode(errors="replace")
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls or ()
    ]
    parsed = [text for text in texts if find_excess(text, _ARGUMENT_LIMITS) is None]
    if find_total_excess(parsed, _ARGUMENT_LIMITS) is not None:
        raise RequestError(
            "the arguments of earlier tool calls have too many values; send fewer calls"
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


def _to_object(index: int, message: Message, *, as_parts: bool) -> dict[str, object]:
    content = message.content
    found: dict[str, object] = {
        "role": message.role,
        "content": _to_parts(content) if as_parts else _to_text(content),
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


def _to_text(content: AnyContent) -> str:
    match content:
        case str():
            return content
        case None:
            return ""
    texts = [part.text for part in content if isinstance(part, TextPart)]
    if len(texts) < len(content):
        raise RequestError("images are not taken here; send text only")
    return "\n".join(texts)


def _to_parts(content: AnyContent) -> list[dict[str, str]]:
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image"}
        for part in content
    ]


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
    if find_excess(text.encode(errors="replace"), _ARGUMENT_LIMITS) is not None:
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text
