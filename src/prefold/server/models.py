"""Models: the routes that say what requests can name: the model, and its adapters."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request

from prefold.engine.adapter_shelf import AdapterShelf
from prefold.errors import UnknownAdapterError
from prefold.server.calls import Desk, caller_of
from prefold.server.config import TenantConfig
from prefold.server.errors import HttpError
from prefold.server.exchange import exchange_of
from prefold.server.protocol import ERROR_RESPONSES, ReplyModel
from prefold.server.served_model import CurrentModel, ServedModel


class ModelReply(ReplyModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["prefold"] = "prefold"
    max_model_len: int
    """Tokens of a prompt and its reply together."""
    root: str
    """The model that computes; of an adapter, the one it adds to."""
    parent: str | None
    """Of an adapter, the same; null for the model itself."""


class ModelList(ReplyModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


def choose_model(
    model: ServedModel, name: str, adapters: AdapterShelf, tenant: TenantConfig
) -> ServedModel:
    """Return the model that a request names, which may be one with an adapter.

    Args:
        model: The one that is served.
        name: What the request gives.
        adapters: Those that are loaded.
        tenant: Whose request it is.

    Raises:
        HttpError: There is no such model, or not for this tenant. Nothing tells which.
    """
    if name == model.name:
        return model
    if may_use(tenant, name):
        try:
            return model.with_adapter(
                name, adapters.fingerprint_of(model.fingerprint, name)
            )
        except UnknownAdapterError:
            # The same as for one that the tenant may not use.
            raise _unknown(model) from None
    raise _unknown(model)


def may_use(tenant: TenantConfig, adapter: str) -> bool:
    """Tell whether a tenant's requests may ask for an adapter of that name."""
    return tenant.adapters is None or adapter in tenant.adapters


def models_router(desk: Desk, models: CurrentModel) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/v1/models")
    async def list_models(http: Request) -> ModelList:
        """List the model and its adapters."""
        model, tenant = models.get(), caller_of(exchange_of(http)).tenant
        names = [name for name in desk.adapters.names if may_use(tenant, name)]
        return ModelList(
            data=[_reply(model, model.name), *(_reply(model, name) for name in names)]
        )

    # Names of models on the hub have a slash in them.
    @router.get("/v1/models/{name:path}")
    async def find_model(name: str, http: Request) -> ModelReply:
        """Return one model."""
        model, tenant = models.get(), caller_of(exchange_of(http)).tenant
        choose_model(model, name, desk.adapters, tenant)
        return _reply(model, name)

    return router


def _reply(model: ServedModel, name: str) -> ModelReply:
    return ModelReply(
        id=name,
        created=model.created,
        max_model_len=model.limits.max_model_len,
        root=model.name,
        parent=None if name == model.name else model.name,
    )


def _unknown(model: ServedModel) -> HttpError:
    return HttpError(
        404,
        f"there is no such model; this server serves {model.name!r}",
        param="model",
        code="model_not_found",
    )
