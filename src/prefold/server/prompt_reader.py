"""Prompt reader: what operators call a prompt, as the public plane would read it."""

from __future__ import annotations

from collections.abc import Sequence

from prefold.blocks.table import TokenIds
from prefold.cache import Access
from prefold.engine.config import RequestOptions
from prefold.engine.prompt import encode_prompt
from prefold.identity.domain import Domain
from prefold.server.admin_protocol import PromptRequest
from prefold.server.chat_template import ChatTemplate, to_conversation
from prefold.server.config import TenantConfig
from prefold.server.errors import HttpError
from prefold.server.off_loop import run_sized
from prefold.server.prompt_encoder import PromptEncoder
from prefold.server.protocol_chat import Message, Tool
from prefold.server.protocol_prompts import split_prompts
from prefold.server.served_model import ServedModel


class PromptReader:
    """Makes prompts of one model and any tenant. Used on one event loop."""

    __slots__ = ("_encoder", "_limits", "_template", "_tenants", "fingerprint")

    def __init__(self, model: ServedModel, tenants: Sequence[TenantConfig]) -> None:
        #: Of the model.
        self.fingerprint = model.fingerprint
        self._limits = model.limits
        self._encoder = PromptEncoder(model.tokenizer, model.limits)
        self._template = ChatTemplate(model.tokenizer)
        self._tenants = {tenant.name: tenant for tenant in tenants}

    async def read(
        self, request: PromptRequest, size: int
    ) -> tuple[list[TokenIds], RequestOptions]:
        """Return the prompts' token ids, and whose they are.

        Args:
            request: The body.
            size: Its bytes, which say what reading it costs.

        Raises:
            HttpError: There is no prompt, there are two kinds, or no such tenant.
            RequestError: A prompt could not be served.
        """
        tenant = self._tenant(request.tenant)
        salt = None if request.cache_salt is None else request.cache_salt.encode()
        options = RequestOptions(
            domain=Domain(tenant.domain, salt=salt),
            # As the tenant's own requests: one that is not cached finds and leaves nothing.
            access=Access(read=tenant.is_cached, write=tenant.is_cached),
            tenant=tenant.name,
        )
        return await run_sized(size, lambda: self._encode(request)), options

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

    def _encode(self, request: PromptRequest) -> list[TokenIds]:
        messages, prompt = request.messages, request.prompt
        if messages is not None and prompt is None:
            return [self._encode_chat(messages, request.tools)]
        if prompt is None or messages is not None:
            raise HttpError(400, "send either prompt or messages", param="prompt")
        if request.tools is not None:
            raise HttpError(400, "tools needs messages", param="tools")
        return [self._encode_one(each) for each in split_prompts(prompt)]

    def _encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None
    ) -> TokenIds:
        text = self._template.render(to_conversation(messages, tools))
        token_ids = self._encoder.encode(text, has_special_tokens=True)
        return encode_prompt(token_ids, None, self._limits)

    def _encode_one(self, prompt: str | list[int]) -> TokenIds:
        token_ids = self._encoder.encode(prompt) if isinstance(prompt, str) else prompt
        return encode_prompt(token_ids, None, self._limits)
