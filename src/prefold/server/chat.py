"""Chat: the route that writes the next message of a conversation.

Tools are given to the model's chat template, and that is all: if the model writes a call,
it comes back as the text it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from prefold.blocks.table import TokenIds
from prefold.engine.mixed_prompt import MixedPrompt
from prefold.engine.prompt import check_ids, encode_prompt
from prefold.server.body import body_size
from prefold.server.calls import CallPlan, Desk, PromptPlan, caller_of
from prefold.server.chat_reply import ChatReply
from prefold.server.chat_template import ChatTemplate, to_conversation
from prefold.server.credentials import Caller
from prefold.server.errors import HttpError
from prefold.server.exchange import exchange_of
from prefold.server.image_files import ImageFiles, image_parts
from prefold.server.logprobs import TokenTexts
from prefold.server.models import choose_model
from prefold.server.off_loop import run_sized
from prefold.server.prompt_encoder import PromptEncoder
from prefold.server.protocol import ERROR_RESPONSES
from prefold.server.protocol_chat import (
    ChatCompletion,
    ChatRequest,
)
from prefold.server.replies import ReplyHeads, to_answer
from prefold.server.sampling import check_common, check_max_tokens, to_params, to_wish
from prefold.server.served_model import CurrentModel, PerModel, ServedModel
from prefold.server.streaming import open_stream

#: What a reply of no stated length is charged until it has ended; it may well be shorter
#: than all that the context leaves.
_UNSTATED_TOKENS = 1024

#: Decoding an image is always worth a thread, however small its file is.
_IMAGE_SIZE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadChat:
    """A conversation as the engine is given it.

    Attributes:
        token_ids: One a position; negative where an image is.
        mixed: The prompt, if it has images.
    """

    token_ids: TokenIds = field(repr=False)
    mixed: MixedPrompt | None = None


class ChatRoute:
    """Answers requests for messages of one model."""

    __slots__ = ("_desk", "_encoder", "_files", "_heads", "_model", "_template", "_texts")

    def __init__(
        self, desk: Desk, model: ServedModel, template: ChatTemplate, files: ImageFiles
    ) -> None:
        self._desk = desk
        self._files = files
        self._model = model
        self._template = template
        self._encoder = PromptEncoder(model.tokenizer, model.limits)
        self._heads = ReplyHeads(model)
        self._texts = TokenTexts(model.tokenizer)

    async def answer(self, request: ChatRequest, http: Request) -> Response:
        """Have a conversation continued.

        Raises:
            HttpError: With what to change.
            PrefoldError: As the limits and the engine raise it.
        """
        exchange = exchange_of(http)
        caller = caller_of(exchange)
        model = choose_model(self._model, request.model, self._desk.adapters, caller.tenant)
        n = self._check(request)
        has_images = bool(image_parts(request.messages))
        size = max(body_size(http), _IMAGE_SIZE if has_images else 0)
        read = self._encode_images if has_images else self._encode
        chat = await run_sized(size, lambda: read(request, caller.tenant.name))
        plan = self._plan(request, chat, n, caller, model)
        options = request.stream_options
        reply = ChatReply(
            self._heads.of(model).make("chatcmpl"),
            n,
            self._texts if request.logprobs else None,
            num_top=request.top_logprobs or 0,
            wants_usage=options is not None and bool(options.include_usage),
        )
        call = await self._desk.open(plan, exchange, http.receive)
        if request.stream:
            return await open_stream(call, reply)
        try:
            outputs = await call.outputs()
        finally:
            call.close()
        usage = call.usage()
        return await run_sized(
            reply.size(usage),
            lambda: to_answer(reply.whole(outputs, usage), usage, outputs[0].miss_reason),
        )

    def _check(self, request: ChatRequest) -> int:
        if request.top_logprobs and not request.logprobs:
            raise HttpError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        return check_common(
            request,
            max_n=self._desk.max_n,
        )

    def _encode(self, request: ChatRequest, _tenant: str) -> _ReadChat:
        # A template writes its special tokens itself.
        token_ids = self._encoder.encode(self._render(request), has_special_tokens=True)
        return _ReadChat(token_ids=encode_prompt(token_ids, None, self._model.limits))

    def _encode_images(self, request: ChatRequest, tenant: str) -> _ReadChat:
        images = self._model.images
        encode = partial(self._encoder.encode, has_special_tokens=True)
        if images.placeholder is None:
            # Says why, before anything is fetched or decoded.
            images.read("", (), encode)
        files = self._files.collect(request.messages, tenant)
        wish = to_wish(request)
        scope = (tenant, wish.domain, wish.salt)
        mixed = images.read(self._render(request), files, encode, scope)
        check_ids(mixed.token_ids, self._model.limits)
        return _ReadChat(token_ids=mixed.marked_ids(), mixed=mixed)

    def _render(self, request: ChatRequest) -> str:
        takes_images = self._model.images.placeholder is not None
        conversation = to_conversation(
            request.messages, request.tools, as_parts=takes_images
        )
        return self._template.render(conversation)

    def _plan(
        self,
        request: ChatRequest,
        chat: _ReadChat,
        n: int,
        caller: Caller,
        model: ServedModel,
    ) -> CallPlan:
        num_prompt_tokens = len(chat.token_ids)
        room = self._model.limits.max_model_len - num_prompt_tokens
        stated = self._stated_tokens(request)
        if stated is None:
            # One token is spare, and no more is asked for than could ever be held.
            fitting = self._desk.capacity_tokens(caller) - num_prompt_tokens - 1
            max_tokens = max(1, min(room, fitting))
            num_reserved = min(max_tokens, _UNSTATED_TOKENS)
        else:
            max_tokens = stated
            num_reserved = min(max_tokens, room)
        params = to_params(
            request,
            max_tokens=max_tokens,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        )
        return CallPlan(
            prompts=[
                PromptPlan(
                    token_ids=chat.token_ids,
                    params=params,
                    num_reserved_tokens=num_prompt_tokens + n * num_reserved,
                    mixed=chat.mixed,
                )
            ],
            wish=to_wish(request),
            n=n,
            fingerprint=model.fingerprint,
            adapter=model.adapter,
        )

    def _stated_tokens(self, request: ChatRequest) -> int | None:
        old, new = request.max_tokens, request.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise HttpError(
                400,
                "max_tokens and max_completion_tokens are two names of one limit; send one",
                param="max_tokens",
            )
        name = "max_tokens" if new is None else "max_completion_tokens"
        stated = old if new is None else new
        if stated is None:
            return None
        return check_max_tokens(name, stated, self._model.limits.max_model_len)


def chat_router(desk: Desk, models: CurrentModel, files: ImageFiles) -> APIRouter:
    """Return the route."""
    router = APIRouter(responses=ERROR_RESPONSES)
    routes = PerModel(
        models,
        lambda model: ChatRoute(desk, model, ChatTemplate(model.tokenizer), files),
    )

    @router.post(
        "/v1/chat/completions",
        response_model=ChatCompletion,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def create_message(request: ChatRequest, http: Request) -> Response:
        """Write the next message of a conversation."""
        return await routes.serve(lambda route: route.answer(request, http))

    return router
