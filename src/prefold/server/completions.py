"""Completions: the route that continues texts and lists of token ids."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from prefold.engine.detokenizer import Detokenizer
from prefold.engine.prompt import encode_prompt
from prefold.engine.request import SamplingParams
from prefold.errors import ModelChangedError
from prefold.identity.fingerprint import Fingerprint
from prefold.server.body import body_size
from prefold.server.calls import CallPlan, Desk, PromptPlan, caller_of
from prefold.server.completion_reply import CompletionReply, ReadPrompt
from prefold.server.errors import HttpError
from prefold.server.exchange import exchange_of
from prefold.server.logprobs import Echo, LegacyLogprobs, TokenTexts
from prefold.server.models import choose_model
from prefold.server.off_loop import run_sized
from prefold.server.prompt_encoder import PromptEncoder
from prefold.server.protocol import ERROR_RESPONSES
from prefold.server.protocol_completions import (
    DEFAULT_MAX_TOKENS,
    Completion,
    CompletionRequest,
)
from prefold.server.protocol_prompts import split_prompts
from prefold.server.replies import ReplyHeads, to_answer
from prefold.server.sampling import check_common, check_max_tokens, to_params, to_wish
from prefold.server.served_model import CurrentModel, PerModel, ServedModel
from prefold.server.streaming import open_stream


class CompletionsRoute:
    """Answers requests for completions of one model."""

    __slots__ = ("_desk", "_detokenizer", "_encoder", "_heads", "_model", "_texts")

    def __init__(self, desk: Desk, model: ServedModel) -> None:
        self._desk = desk
        self._model = model
        self._encoder = PromptEncoder(model.tokenizer, model.limits)
        self._heads = ReplyHeads(model)
        self._texts = TokenTexts(model.tokenizer)
        self._detokenizer = Detokenizer(model.tokenizer)

    async def answer(self, request: CompletionRequest, http: Request) -> Response:
        """Have a request's prompts continued.

        Raises:
            HttpError: With what to change.
            PrefoldError: As the limits and the engine raise it.
        """
        exchange = exchange_of(http)
        model = choose_model(
            self._model, request.model, self._desk.adapters, caller_of(exchange).tenant
        )
        n = self._check(request)
        texts = split_prompts(request.prompt)
        prompts = await run_sized(
            body_size(http), lambda: [self._read(text, request) for text in texts]
        )
        plan = self._plan(request, prompts, n, model)
        reply = self._reply(request, prompts, n, model)
        call = await self._desk.open(plan, exchange, http.receive)
        if request.stream:
            return await open_stream(call, reply)
        try:
            outputs = await call.outputs()
        finally:
            call.close()
        usage = call.usage()
        miss = outputs[0].miss_reason if len(prompts) == 1 else None
        return await run_sized(
            reply.size(usage), lambda: to_answer(reply.whole(outputs, usage), usage, miss)
        )

    def check_ids(self, request: CompletionRequest, came: Fingerprint) -> None:
        """Refuse token ids that may mean something else than when they came.

        Args:
            request: What is asked for.
            came: Of the model that was served then.

        Raises:
            ModelChangedError: Its tokenizer was another one.
        """
        if came.tokenizer == self._model.fingerprint.tokenizer:
            return
        if not all(isinstance(prompt, str) for prompt in split_prompts(request.prompt)):
            raise ModelChangedError("the model was replaced by one with other token ids")

    def _check(self, request: CompletionRequest) -> int:
        n = check_common(
            request,
            max_n=self._desk.max_n,
        )
        if request.best_of is not None and request.best_of != n:
            raise HttpError(
                400,
                "best_of must be equal to n: replies are not ranked; leave it out",
                param="best_of",
            )
        return n

    def _read(self, prompt: str | list[int], request: CompletionRequest) -> ReadPrompt:
        read = self._encoder.encode(prompt) if isinstance(prompt, str) else prompt
        token_ids = encode_prompt(read, None, self._model.limits)
        echo: Echo | None = None
        if request.echo and isinstance(prompt, str):
            plain = self._encoder.encode(prompt, has_special_tokens=True)
            num_added = len(read) - len(plain)
            # Those that the tokenizer put before the text are no part of it.
            echo = Echo(
                text=prompt, num_hidden=num_added if read[num_added:] == plain else 0
            )
        elif request.echo and not isinstance(prompt, str):
            echo = Echo(text=self._texts.decode(prompt))
        return ReadPrompt(token_ids=token_ids, echo=echo)

    def _plan(
        self,
        request: CompletionRequest,
        prompts: Sequence[ReadPrompt],
        n: int,
        model: ServedModel,
    ) -> CallPlan:
        params = self._params(request)
        max_model_len = self._model.limits.max_model_len
        return CallPlan(
            prompts=[
                PromptPlan(
                    token_ids=prompt.token_ids,
                    params=params,
                    num_reserved_tokens=len(prompt.token_ids)
                    + n * min(params.max_tokens, max_model_len - len(prompt.token_ids)),
                )
                for prompt in prompts
            ],
            wish=to_wish(request),
            n=n,
            fingerprint=model.fingerprint,
            adapter=model.adapter,
        )

    def _params(self, request: CompletionRequest) -> SamplingParams:
        max_tokens = request.max_tokens
        if max_tokens is None:
            max_tokens = DEFAULT_MAX_TOKENS
        return to_params(
            request,
            max_tokens=check_max_tokens(
                "max_tokens", max_tokens, self._model.limits.max_model_len
            ),
            logprobs=request.logprobs,
            prompt_logprobs=request.logprobs if request.echo else None,
        )

    def _reply(
        self,
        request: CompletionRequest,
        prompts: Sequence[ReadPrompt],
        n: int,
        model: ServedModel,
    ) -> CompletionReply:
        stop_ids = frozenset(request.stop_token_ids or ())
        collected = [
            LegacyLogprobs(
                self._texts,
                self._detokenizer.start(stop_ids),
                has_top=bool(request.logprobs),
            )
            for _ in range(n * len(prompts) if request.logprobs is not None else 0)
        ]
        options = request.stream_options
        return CompletionReply(
            self._heads.of(model).make("cmpl"),
            [prompt for prompt in prompts for _ in range(n)],
            collected,
            wants_usage=options is not None and bool(options.include_usage),
        )


def completions_router(desk: Desk, models: CurrentModel) -> APIRouter:
    """Return the route."""
    router = APIRouter(responses=ERROR_RESPONSES)
    routes = PerModel(models, lambda model: CompletionsRoute(desk, model))

    @router.post(
        "/v1/completions",
        response_model=Completion,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    )
    async def create_completion(request: CompletionRequest, http: Request) -> Response:
        """Continue one or several prompts."""
        came = models.get().fingerprint

        async def ask(route: CompletionsRoute) -> Response:
            route.check_ids(request, came)
            return await route.answer(request, http)

        return await routes.serve(ask)

    return router
