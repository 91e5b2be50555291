"""Tokenize: the route that says which tokens a prompt has, without computing anything."""

from __future__ import annotations

from fastapi import APIRouter, Request

from prefold.server.body import body_size
from prefold.server.calls import Desk, caller_of
from prefold.server.chat_template import ChatTemplate, to_conversation
from prefold.server.errors import HttpError
from prefold.server.exchange import exchange_of
from prefold.server.models import choose_model
from prefold.server.off_loop import run_sized
from prefold.server.prompt_encoder import PromptEncoder
from prefold.server.protocol import ERROR_RESPONSES, ReplyModel, StrictModel
from prefold.server.protocol_chat import Messages, Tools
from prefold.server.served_model import CurrentModel, PerModel, ServedModel

TOKENIZE_PATH = "/tokenize"


class TokenizeRequest(StrictModel):
    """A body of ``POST /tokenize``: a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None


class TokenizeReply(ReplyModel):
    """The tokens that a completion route would give to the model."""

    tokens: list[int]
    count: int
    max_model_len: int
    """Tokens of a prompt and its reply together."""


class _Reader:
    """Reads the prompts of one model."""

    __slots__ = ("encoder", "model", "template")

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.encoder = PromptEncoder(model.tokenizer, model.limits)
        self.template = ChatTemplate(model.tokenizer)


def tokenize_router(desk: Desk, models: CurrentModel) -> APIRouter:
    """Return the route."""
    router = APIRouter(responses=ERROR_RESPONSES)
    readers = PerModel(models, _Reader)

    @router.post(TOKENIZE_PATH)
    async def tokenize(request: TokenizeRequest, http: Request) -> TokenizeReply:
        """Return the tokens of a prompt, or of a conversation with the chat template."""
        reader = readers.get()
        if request.model is not None:
            tenant = caller_of(exchange_of(http)).tenant
            choose_model(reader.model, request.model, desk.adapters, tenant)
        token_ids = await run_sized(
            body_size(http), lambda: _encode(request, reader.encoder, reader.template)
        )
        return TokenizeReply(
            tokens=token_ids,
            count=len(token_ids),
            max_model_len=reader.model.limits.max_model_len,
        )

    return router


def _encode(
    request: TokenizeRequest, encoder: PromptEncoder, template: ChatTemplate
) -> list[int]:
    prompt, messages = request.prompt, request.messages
    if messages is not None and prompt is None:
        text = template.render(to_conversation(messages, request.tools))
        return encoder.encode(text, has_special_tokens=True)
    if prompt is None or messages is not None:
        raise HttpError(400, "send either prompt or messages", param="prompt")
    if request.tools is not None:
        raise HttpError(400, "tools needs messages", param="tools")
    return encoder.encode(prompt)
