"""Uploads: files that tenants have sent ahead, kept in memory for a while.

Each tenant has its own room, so that nobody can tell from a refusal what others have sent;
an id is found by the tenant that got it and by nobody else.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from prefold.errors import InvariantError
from prefold.server.errors import HttpError
from prefold.server.images_config import ImagesConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One file.

    Attributes:
        created: In seconds since 1970.
        expires_at: On the store's clock.
    """

    file_id: str
    data: bytes = field(repr=False)
    created: int
    expires_at: float


class UploadStore:
    """Uploaded files by tenant. May be used by several threads.

    Args:
        config: How many bytes and files a tenant may have, and for how long.
        clock: Seconds, never decreasing.

    Invariants: no tenant has more files or bytes than it may have.
    """

    __slots__ = ("_by_tenant", "_clock", "_config", "_lock")

    def __init__(
        self, config: ImagesConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._clock = clock
        self._by_tenant: dict[str, OrderedDict[str, Upload]] = {}
        self._lock = threading.Lock()

    def add(self, tenant: str, data: bytes) -> Upload:
        """Keep a file.

        Raises:
            HttpError: It is empty, or the tenant has no room for it.
        """
        if not data:
            raise HttpError(400, "the file is empty", param="file")
        with self._lock:
            own = self._by_tenant.setdefault(tenant, OrderedDict())
            self._expire(own)
            num_bytes = sum(len(upload.data) for upload in own.values())
            if len(own) >= self._config.max_uploads or (
                num_bytes + len(data) > self._config.max_upload_bytes
            ):
                raise HttpError(
                    429,
                    f"a tenant may keep {self._config.max_uploads} files of "
                    f"{self._config.max_upload_bytes} bytes together; delete some, or wait "
                    "until they expire",
                    code="too_many_files",
                )
            upload = Upload(
                file_id=f"file-{secrets.token_hex(12)}",
                data=data,
                created=int(time.time()),
                expires_at=self._clock() + self._config.upload_ttl_s,
            )
            own[upload.file_id] = upload
            return upload

    def find(self, tenant: str, file_id: str) -> bytes | None:
        """Return a tenant's file, or None."""
        with self._lock:
            own = self._by_tenant.get(tenant)
            if own is None:
                return None
            self._expire(own)
            upload = own.get(file_id)
            return None if upload is None else upload.data

    def delete(self, tenant: str, file_id: str) -> bool:
        """Forget a tenant's file; say if it was there."""
        with self._lock:
            own = self._by_tenant.get(tenant, OrderedDict())
            self._expire(own)
            return own.pop(file_id, None) is not None

    def _expire(self, own: OrderedDict[str, Upload]) -> None:
        # In the order of their coming, which is that of their going.
        now = self._clock()
        while own and next(iter(own.values())).expires_at <= now:
            own.popitem(last=False)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if a tenant has more than it may have."""
        with self._lock:
            for own in self._by_tenant.values():
                num_bytes = sum(len(upload.data) for upload in own.values())
                if len(own) > self._config.max_uploads:
                    raise InvariantError("a tenant has more files than it may have")
                if num_bytes > self._config.max_upload_bytes:
                    raise InvariantError("a tenant's files have more bytes than they may")
