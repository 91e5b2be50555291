"""Protocol of ``/v1/chat/completions``: a conversation in, the next message out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from prefold.server.protocol import (
    GenerationRequest,
    ReplyModel,
    StrictModel,
    UsageReply,
    explained,
)


class TextPart(StrictModel):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class ImageUrl(StrictModel):
    """Where an image is: in the URL itself, unless the operator has named hosts."""

    url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto", "low", "high"] | None = None
    """Accepted and not used: the model's own settings say how images are cut."""


class ImagePart(StrictModel):
    """An image, as a data URL or base64."""

    type: Literal["image_url"]
    image_url: ImageUrl


class UploadedFile(StrictModel):
    """A file that was uploaded before."""

    file_id: Annotated[str, Field(min_length=1, max_length=64)]


class FilePart(StrictModel):
    """An image that was uploaded to ``/v1/files`` before."""

    type: Literal["file"]
    file: UploadedFile


_ONLY_TEXT = explained(
    "must be a text, or a list of parts of type 'text'; images belong into the messages "
    "of the user, and audio is not supported"
)


def _kind_of(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "parts" if isinstance(value, list) else None


# Told apart before anything is checked, and refused at the first wrong part: a million
# wrong ones are not worth a million complaints.
_Text = Annotated[str, Tag("text")]
_Parts = Annotated[list[TextPart], Field(fail_fast=True), Tag("parts")]
_TextOrParts = Annotated[_Text | _Parts, Discriminator(_kind_of)]
Content = Annotated[_TextOrParts, _ONLY_TEXT]

_UserPart = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
_UserParts = Annotated[list[_UserPart], Field(fail_fast=True), Tag("parts")]
UserContent = Annotated[
    Annotated[_Text | _UserParts, Discriminator(_kind_of)],
    explained(
        "must be a text, or a list of parts of type 'text', 'image_url' or 'file'; audio "
        "is not supported"
    ),
]
#: Calls of one message, at most.
_MAX_TOOL_CALLS = 128

_Name = Annotated[str, Field(min_length=1, max_length=256)]


class InstructionMessage(StrictModel):
    """What the model is told about its task."""

    role: Literal["system", "developer"]
    content: Content
    name: _Name | None = None


class UserMessage(StrictModel):
    """What the user says."""

    role: Literal["user"]
    content: UserContent
    name: _Name | None = None


class CalledFunction(StrictModel):
    """The function of an earlier call."""

    name: str
    arguments: str


class ToolCall(StrictModel):
    """A call that an earlier reply made."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(StrictModel):
    """An earlier reply."""

    role: Literal["assistant"]
    content: Annotated[_TextOrParts | None, _ONLY_TEXT] = None
    name: _Name | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(max_length=_MAX_TOOL_CALLS, fail_fast=True)] | None
    ) = None
    refusal: Annotated[None, explained("must be null: put what was said into content")] = (
        None
    )
    annotations: Annotated[
        Annotated[list[Any], Field(max_length=0)] | None,
        explained("must be left out: no reply of this server has any"),
    ] = None
    audio: Annotated[None, explained("is not supported; leave it out")] = None
    function_call: Annotated[None, explained("is not supported; use tool_calls")] = None


class ToolMessage(StrictModel):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: _Name | None = None


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class FunctionFields(StrictModel):
    """What the model is told of a function."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[
        Literal[False] | None,
        explained("must be false: what the model writes is not held to a schema"),
    ] = None


class Tool(StrictModel):
    """A function that the chat template is told of."""

    type: Annotated[Literal["function"], explained("must be 'function'")]
    function: FunctionFields


class TextFormat(StrictModel):
    """The one format that replies have."""

    type: Literal["text"]


Messages = Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
Tools = Annotated[list[Tool], Field(max_length=512, fail_fast=True)]


class ChatRequest(GenerationRequest):
    """A body of ``POST /v1/chat/completions``."""

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """All that the context leaves, if left out."""
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    """The same under its newer name."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Alternatives to report for each token; needs ``logprobs``."""

    tools: Tools | None = None
    """Given to the chat template. What the model writes comes back as text."""
    tool_choice: Annotated[
        Literal["auto", "none"] | None,
        explained("must be 'auto' or 'none': the model cannot be made to call a tool"),
    ] = None
    parallel_tool_calls: bool | None = None
    """Accepted and not used."""
    functions: Annotated[None, explained("is not supported; use tools")] = None
    function_call: Annotated[None, explained("is not supported; use tool_choice")] = None

    response_format: Annotated[
        TextFormat | None,
        explained(
            "must be {'type': 'text'}: replies are not held to a format; ask for it in the "
            "prompt and check the reply"
        ),
    ] = None
    modalities: Annotated[
        Annotated[list[Literal["text"]], Field(min_length=1)] | None,
        explained("must be ['text']: replies are text"),
    ] = None
    audio: Annotated[None, explained("is not supported; replies are text")] = None
    store: Annotated[
        Literal[False] | None, explained("must be false: replies are not stored")
    ] = None
    prediction: Annotated[None, explained("is not supported; leave it out")] = None
    reasoning_effort: Annotated[None, explained("is not supported; leave it out")] = None
    verbosity: Annotated[None, explained("is not supported; leave it out")] = None
    web_search_options: Annotated[None, explained("is not supported; leave it out")] = None
    moderation: Annotated[None, explained("is not supported; leave it out")] = None


class TopLogprob(ReplyModel):
    """A token that was likely at some place."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobReply(ReplyModel):
    """A token of the reply, and what was likely at its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(ReplyModel):
    """Log-probabilities of a reply."""

    content: list[TokenLogprobReply]
    refusal: None = None


class ChatMessage(ReplyModel):
    """A reply. Calls of tools are part of its text, as the model wrote them."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(ReplyModel):
    """One of the replies."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(ReplyModel):
    """An answer of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageReply


class ChatDelta(ReplyModel):
    """What a piece of a streamed reply adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(ReplyModel):
    """A piece of one of the replies."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class ChatChunk(ReplyModel):
    """An event of a streamed reply."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageReply | None = None
