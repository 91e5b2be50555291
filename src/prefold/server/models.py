"""Models: the routes that say which model is served."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from prefold.server.errors import HttpError
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


class ModelList(ReplyModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelReply]


def check_model(model: ServedModel, name: str) -> None:
    """Check that a request names the model that is served.

    Raises:
        HttpError: It names another.
    """
    if name != model.name:
        raise HttpError(
            404,
            f"there is no such model; this server serves {model.name!r}",
            param="model",
            code="model_not_found",
        )


def models_router(models: CurrentModel) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """List the models; there is one."""
        return ModelList(data=[_reply(models.get())])

    # Names of models on the hub have a slash in them.
    @router.get("/v1/models/{name:path}")
    async def find_model(name: str) -> ModelReply:
        """Return one model."""
        model = models.get()
        check_model(model, name)
        return _reply(model)

    return router


def _reply(model: ServedModel) -> ModelReply:
    return ModelReply(
        id=model.name, created=model.created, max_model_len=model.limits.max_model_len
    )
