"""Image files: where the images of a conversation come from, as the bytes they are.

An image is in the request itself, as a data URL or base64; or it was uploaded before, by
the same tenant; or, where the operator names hosts, it is fetched. What a data URL says
its bytes are is not believed, and every complaint is a constant sentence.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from prefold.server.errors import HttpError
from prefold.server.protocol_chat import FilePart, ImagePart, Message, UserMessage
from prefold.server.remote_images import RemoteImages
from prefold.server.uploads import UploadStore

_REMOTE = ("http:", "https:")


class ImageFiles:
    """Finds the files of one server's images. May be used by several threads.

    Args:
        uploads: What tenants have uploaded.
        remote: What may be fetched.
        max_images: Of one request; more are refused before anything is decoded.
    """

    __slots__ = ("_max_images", "_remote", "_uploads")

    def __init__(
        self, uploads: UploadStore, remote: RemoteImages, *, max_images: int
    ) -> None:
        self._uploads = uploads
        self._remote = remote
        self._max_images = max_images

    def collect(self, messages: Sequence[Message], tenant: str) -> list[bytes]:
        """Return the files of a conversation's images, in their order. May wait for hosts.

        Raises:
            HttpError: They are too many, or one is not there.
        """
        parts = image_parts(messages)
        if len(parts) > self._max_images:
            raise _refused(
                f"a request may have {self._max_images} images, got {len(parts)}; "
                "send fewer"
            )
        return [self._file(part, tenant) for part in parts]

    def _file(self, part: ImagePart | FilePart, tenant: str) -> bytes:
        if isinstance(part, FilePart):
            found = self._uploads.find(tenant, part.file.file_id)
            if found is None:
                raise HttpError(
                    404,
                    "there is no such file, or not any more; upload it again",
                    param="messages",
                    code="file_not_found",
                )
            return found
        url = part.image_url.url
        if url[:6].lower().startswith(_REMOTE):
            return self._remote.fetch(url)
        return _decoded(url)


def image_parts(messages: Sequence[Message]) -> list[ImagePart | FilePart]:
    """Return the parts of a conversation that are images."""
    return [
        part
        for message in messages
        if isinstance(message, UserMessage) and isinstance(message.content, list)
        for part in message.content
        if isinstance(part, ImagePart | FilePart)
    ]


def _decoded(url: str) -> bytes:
    text = url
    if url[:5].lower() == "data:":
        head, comma, text = url.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise _refused(
                "an image's data URL must be 'data:image/png;base64,' and base64 behind it"
            )
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise _refused(
            "an image must be a data URL or base64; what was sent is neither"
        ) from error


def _refused(message: str) -> HttpError:
    return HttpError(400, message, param="messages", code="invalid_image")
