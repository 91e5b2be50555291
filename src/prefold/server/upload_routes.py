"""Upload routes: files that chats may refer to, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request

from prefold.server.calls import caller_of
from prefold.server.errors import HttpError
from prefold.server.exchange import exchange_of
from prefold.server.multipart import read_form
from prefold.server.protocol import ERROR_RESPONSES, ReplyModel
from prefold.server.uploads import UploadStore

FILES_PATH = "/v1/files"

#: What OpenAI's clients say a file is for, of the purposes that images have.
_PURPOSES = ("vision", "user_data")


class FileReply(ReplyModel):
    """An uploaded file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str = "image"
    """Always this: the client's own name is not kept."""
    purpose: str


class DeletedFile(ReplyModel):
    """A file that is gone."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def upload_router(uploads: UploadStore) -> APIRouter:
    """Return the routes."""
    router = APIRouter(responses=ERROR_RESPONSES)

    @router.post(FILES_PATH)
    async def upload(http: Request) -> FileReply:
        """Keep an image for a while; a chat refers to it by its id."""
        tenant = caller_of(exchange_of(http)).tenant.name
        form = read_form(http.headers.get("content-type", ""), await http.body())
        purpose = form.get("purpose", b"").decode("utf-8", "replace")
        if purpose not in _PURPOSES:
            raise HttpError(400, f"purpose must be one of {_PURPOSES}", param="purpose")
        if "file" not in form:
            raise HttpError(400, "the form has no field named file", param="file")
        found = uploads.add(tenant, form["file"])
        return FileReply(
            id=found.file_id,
            bytes=len(found.data),
            created_at=found.created,
            purpose=purpose,
        )

    @router.delete(FILES_PATH + "/{file_id}")
    async def delete(file_id: str, http: Request) -> DeletedFile:
        """Forget a file."""
        tenant = caller_of(exchange_of(http)).tenant.name
        if not uploads.delete(tenant, file_id):
            raise HttpError(
                404, "there is no such file, or not any more", code="file_not_found"
            )
        return DeletedFile(id=file_id)

    return router
