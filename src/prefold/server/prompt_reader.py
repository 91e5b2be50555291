"""Prompt reader: what operators call a prompt, as the public plane would read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from prefold.blocks.table import TokenIds
from prefold.engine.config import RequestOptions
from prefold.engine.prompt import encode_prompt
from prefold.server.admin_protocol import PromptRequest, WarmRequest
from prefold.server.chat_template import ChatTemplate, Conversation, to_conversation
from prefold.server.config import TenantConfig
from prefold.server.errors import HttpError
from prefold.server.grants import CacheWish, Grants
from prefold.server.off_loop import run_sized
from prefold.server.prompt_encoder import PromptEncoder
from prefold.server.protocol_prompts import split_prompts
from prefold.server.served_model import ServedModel
from prefold.server.sharing_protocol import PrefixRequest


class PromptReader:
    """Makes prompts of one model and any tenant. Used on one event loop."""

    __slots__ = ("_encoder", "_grants", "_limits", "_template", "_tenants", "fingerprint")

    def __init__(
        self, model: ServedModel, tenants: Sequence[TenantConfig], grants: Grants
    ) -> None:
        #: Of the model.
        self.fingerprint = model.fingerprint
        self._limits = model.limits
        self._encoder = PromptEncoder(model.tokenizer, model.limits)
        self._template = ChatTemplate(model.tokenizer)
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._grants = grants

    async def read(
        self, request: PromptRequest, size: int
    ) -> tuple[list[TokenIds], RequestOptions]:
        """Return the prompts' token ids, and whose they are.

        Args:
            request: The body.
            size: Its bytes, which say what reading it costs.

        Raises:
            HttpError: There is no prompt, there are two kinds, no such tenant, or the
                domain is none of the tenant's.
            RequestError: A prompt could not be served.
        """
        wish = CacheWish(
            domain=request.domain, salt=request.cache_salt, domain_field="domain"
        )
        if isinstance(request, WarmRequest):
            wish = replace(wish, ttl_s=request.ttl_s, priority=request.priority)
        options = replace(
            self._grants.operator_options(self._tenant(request.tenant), wish),
            adapter=request.adapter,
        )
        encode = partial(self._encode, request, awaits_reply=True)
        return await run_sized(size, encode), options

    async def read_prefix(self, request: PrefixRequest, size: int) -> TokenIds:
        """Return the token ids that prompts begin with, whoever sends them.

        Args:
            request: The body.
            size: As above.

        Raises:
            HttpError: There is no prompt, or there are two kinds.
            RequestError: It could not be served.
        """
        encode = partial(self._encode, request, awaits_reply=False)
        [token_ids] = await run_sized(size, encode)
        return token_ids

    def _tenant(self, name: str | None) -> TenantConfig:
        if name is None and len(self._tenants) == 1:
            [only] = self._tenants.values()
            return only
        if name is None:
            raise HttpError(
                400,
                "tenant is missing: there are several, so name the one whose requests are "
                "to find it",
                param="tenant",
                code="missing_required_parameter",
            )
        tenant = self._tenants.get(name)
        if tenant is None:
            known = ", ".join(list(self._tenants)[:10])
            raise HttpError(
                404,
                f"there is no such tenant; there is {known}",
                param="tenant",
                code="tenant_not_found",
            )
        return tenant

    def _encode(
        self, request: PromptRequest | PrefixRequest, *, awaits_reply: bool
    ) -> list[TokenIds]:
        messages, prompt = request.messages, request.prompt
        if messages is not None and prompt is None:
            conversation = to_conversation(
                messages, request.tools, awaits_reply=awaits_reply
            )
            return [self._encode_chat(conversation)]
        if prompt is None or messages is not None:
            raise HttpError(400, "send either prompt or messages", param="prompt")
        if request.tools is not None:
            raise HttpError(400, "tools needs messages", param="tools")
        return [self._encode_one(each) for each in split_prompts(prompt)]

    def _encode_chat(self, conversation: Conversation) -> TokenIds:
        text = self._template.render(conversation)
        token_ids = self._encoder.encode(text, has_special_tokens=True)
        return encode_prompt(token_ids, None, self._limits)

    def _encode_one(self, prompt: str | list[int]) -> TokenIds:
        token_ids = self._encoder.encode(prompt) if isinstance(prompt, str) else prompt
        return encode_prompt(token_ids, None, self._limits)
