"""Adapter administration: the routes that list, load, reload and unload adapters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from prefold.engine.adapter_shelf import AdapterInfo
from prefold.engine.async_engine import AsyncEngine
from prefold.errors import NameInUseError, UnknownAdapterError
from prefold.server.errors import HttpError
from prefold.server.protocol import ERROR_RESPONSES, ReplyModel, StrictModel
from prefold.server.served_model import CurrentModel


class LoadAdapterRequest(StrictModel):
    """Which adapter, and what requests are to call it."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """What requests give as ``model``."""
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """A directory that PEFT has saved, as this server finds it."""
    reload: bool = False
    """Whether it takes the place of the one that has the name."""


class AdapterReply(ReplyModel):
    """A version of an adapter."""

    name: str
    digest: str
    """Of its content, in hexadecimal digits: a value of the field ``adapter``, by which
    what it has cached is dropped. Equal content has equal digests."""
    path: str
    rank: int
    num_layers: int
    num_bytes: int
    is_exact: bool
    """Whether equal bits can be promised."""
    is_activated: bool
    """Whether it acts only from certain tokens of a prompt on."""
    open_requests: int
    """Replies of it that have not ended."""
    is_leaving: bool
    """Whether it was unloaded or replaced, and only these still use it."""


class AdaptersReply(ReplyModel):
    """All that are loaded, then those that are only still in use."""

    adapters: list[AdapterReply]


class UnloadedReply(ReplyModel):
    """What was unloaded."""

    name: str
    digest: str
    draining_requests: int
    """Replies that finish with it. What they leave cached stays until it is evicted, or
    dropped by the digest."""


def adapters_router(engine: AsyncEngine, models: CurrentModel) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.get("/adapters")
    async def list_adapters() -> AdaptersReply:
        """List the adapters."""
        infos = await engine.adapters.infos()
        return AdaptersReply(adapters=[_reply(info) for info in infos])

    @router.post("/adapters")
    async def load(request: LoadAdapterRequest) -> AdapterReply:
        """Load an adapter while requests are served."""
        if request.name == models.get().name:
            raise NameInUseError("the model itself has this name; take another one")
        try:
            await engine.adapters.load(request.name, request.path, reload=request.reload)
        except UnknownAdapterError as error:
            raise _unknown("leave reload out to load it") from error
        infos = await engine.adapters.infos()
        found = [it for it in infos if it.name == request.name and not it.is_leaving]
        if not found:
            raise _unknown("somebody has unloaded it at once")
        return _reply(found[0])

    # Names may have a slash in them, as those of models do.
    @router.delete("/adapters/{name:path}")
    async def unload(name: str) -> UnloadedReply:
        """Take no more requests for an adapter; open ones finish."""
        try:
            adapter = await engine.adapters.unload(name)
        except UnknownAdapterError as error:
            raise _unknown("GET /adapters lists those that are loaded") from error
        infos = await engine.adapters.infos()
        return UnloadedReply(
            name=name,
            digest=adapter.digest.hex(),
            draining_requests=sum(
                it.num_open
                for it in infos
                if it.is_leaving and (it.name, it.digest) == (name, adapter.digest)
            ),
        )

    return router


def _unknown(what_to_do: str) -> HttpError:
    return HttpError(
        404,
        f"no adapter of this name is loaded; {what_to_do}",
        param="name",
        code="adapter_not_found",
    )


def _reply(info: AdapterInfo) -> AdapterReply:
    return AdapterReply(
        name=info.name,
        digest=info.digest.hex(),
        path=info.source,
        rank=info.rank,
        num_layers=info.num_layers,
        num_bytes=info.num_bytes,
        is_exact=info.is_exact,
        is_activated=info.is_activated,
        open_requests=info.num_open,
        is_leaving=info.is_leaving,
    )
