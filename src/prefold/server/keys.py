"""API keys: who may send requests for which tenant, kept as hashes in one file.

A key has a part that may be seen and a secret of 256 random bits::

    pf_9f2c41d0a7b35e68_<64 hexadecimal digits>
       public id        secret

The file holds SHA-256 of the whole key under its public id. A secret that random needs
no slow hash: nobody can try enough of them. A look-up is one dictionary access, one hash
and one comparison in constant time, whether the id is known or not.

The file is replaced as a whole, under a lock, so of two commands none loses its key. A
running server looks at most every two seconds whether it is another file now.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prefold.engine.digest_memory import FileStamp
from prefold.engine.user_dirs import state_dir
from prefold.errors import ConfigError, InvalidInputError
from prefold.identity.private_file import lock_beside, read_private, replace_private
from prefold.server.config import check_tenant_name
from prefold.server.key_records import (
    MAX_TIME,
    PUBLIC_ID,
    ApiKey,
    check_label,
    format_keys,
    parse_keys,
)

#: Names the key file in place of the configuration.
KEY_FILE_VARIABLE = "PREFOLD_KEY_FILE"

#: How long a change of the file may go unnoticed.
CHECK_INTERVAL_S = 2.0

_WHAT = "the key file"
_MAX_KEYS = 10_000
_MAX_BYTES = 2**23

#: File times are coarse: a file that changed moments ago could change again under the
#: same ones, so it is read again until it has come to rest.
_MIN_AGE_NS = 2 * 10**9

_PUBLIC_ID_BYTES = 8
_SECRET_BYTES = 32
_KEY = re.compile(r"pf_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)

#: Compared with where there is no key of that id, so that this takes as long.
_NO_DIGEST = "0" * 64

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made: the only time that its text can be seen."""

    entry: ApiKey
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.entry.public_id!r})"


class KeyFile:
    """The keys of one file, which several processes may use at once.

    A server keeps one and calls ``find``; a command makes one and calls ``create`` or
    ``revoke``. To read it anew takes some 10 us for each key that is in it, so a server
    calls ``refresh`` on another thread, often enough that ``find`` has no need to.

    Args:
        path: The file; one that does not exist holds no keys.
        now: Seconds since the epoch.
        clock: Seconds from any origin; never goes back.

    Raises:
        ConfigError: The file is there and cannot be used.
    """

    __slots__ = (
        "_checked_at",
        "_clock",
        "_fault",
        "_keys",
        "_now",
        "_path",
        "_refreshing",
        "_stamp",
    )

    def __init__(
        self,
        path: Path,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._now = now
        self._clock = clock
        self._checked_at = clock()
        # Of two that read it at once, the slower one could bring back what is past.
        self._refreshing = threading.Lock()
        #: What was wrong when it was last read.
        self._fault: str | None = None
        #: Of the file when it was read, if any later change will show in it.
        self._stamp = self._settled_stamp()
        self._keys = self._read()

    def find(self, text: str) -> ApiKey | None:
        """Return the key of that text, which may have expired; None if there is none.

        Reads the file if nobody has looked at it for ``CHECK_INTERVAL_S``.
        """
        self._refresh_if_due()
        found = _KEY.fullmatch(text)
        if found is None:
            return None
        entry = self._keys.get(found[1])
        expected = _NO_DIGEST if entry is None else entry.digest
        return entry if hmac.compare_digest(digest_key(text), expected) else None

    def entries(self) -> tuple[ApiKey, ...]:
        """Return all keys, in the order in which they were made."""
        self._refresh_if_due()
        return tuple(self._keys.values())

    def create(
        self, tenant: str, *, label: str | None = None, expires_at: int | None = None
    ) -> NewKey:
        """Make a key and write it to the file.

        Raises:
            ConfigError: A value cannot be used, the file cannot be used or written, or
                it is full.
        """
        check_tenant_name(tenant)
        check_label(label)
        created_at = int(self._now())
        if expires_at is not None and not created_at < expires_at <= MAX_TIME:
            raise ConfigError("a key must expire after now and before the year 10000")
        with self._changing() as keys:
            if len(keys) >= _MAX_KEYS:
                raise ConfigError(f"{_WHAT} {self._path} is full: revoke keys not in use")
            public_id = secrets.token_hex(_PUBLIC_ID_BYTES)
            while public_id in keys:
                public_id = secrets.token_hex(_PUBLIC_ID_BYTES)
            text = f"pf_{public_id}_{secrets.token_hex(_SECRET_BYTES)}"
            entry = ApiKey(
                public_id=public_id,
                digest=digest_key(text),
                tenant=tenant,
                created_at=created_at,
                expires_at=expires_at,
                label=label,
            )
            keys[public_id] = entry
        return NewKey(entry=entry, text=text)

    def revoke(self, public_id: str) -> ApiKey:
        """Remove the key with that id from the file, and return it.

        Raises:
            InvalidInputError: There is none, or it is no id; nothing changes.
            ConfigError: The file cannot be used or written.
        """
        public_id = parse_public_id(public_id)
        with self._changing() as keys:
            if public_id not in keys:
                raise InvalidInputError(
                    f"there is no key {public_id} in {self._path}; "
                    "'prefold keys list' shows all"
                )
            return keys.pop(public_id)

    def revoke_tenants(self, tenants: Collection[str]) -> int:
        """Remove every key of some tenants from the file; return how many there were.

        Raises:
            ConfigError: The file cannot be used or written; nothing changes.
        """
        with self._changing() as keys:
            gone = [name for name, key in keys.items() if key.tenant in tenants]
            for public_id in gone:
                del keys[public_id]
        return len(gone)

    def refresh(self) -> None:
        """Take over what the file says now, if it has changed; on any thread.

        Does nothing while another thread does the same.
        """
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            self._checked_at = self._clock()
            self._take_over()
        finally:
            self._refreshing.release()

    def now(self) -> float:
        """Return the time by which keys expire."""
        return self._now()

    @contextmanager
    def _changing(self) -> Iterator[dict[str, ApiKey]]:
        """Yield the keys as the file has them, and write what the body made of them."""
        # A link is followed, not replaced.
        target = Path(os.path.realpath(self._path))
        try:
            # Whoever reads meanwhile would bring back what is removed here.
            with self._refreshing, lock_beside(target):
                keys = self._read()
                yield keys
                replace_private(target, format_keys(keys.values()))
                self._keys = keys
        except OSError as exc:
            raise ConfigError(f"cannot write {_WHAT} {self._path}: {exc.strerror}") from exc

    def _refresh_if_due(self) -> None:
        if self._clock() - self._checked_at >= CHECK_INTERVAL_S:
            self.refresh()

    def _take_over(self) -> None:
        # Taken before reading: a change in between shows the next time.
        stamp = self._settled_stamp()
        if stamp is not None and stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            keys = self._read()
        except ConfigError as exc:
            # Whatever happened to the file, who had access keeps it and nobody gets it.
            fault = str(exc)
            if fault != self._fault:
                _LOG.warning("%s; the keys read before stay valid", fault)
            self._fault = fault
            return
        self._fault = None
        if self._keys and not keys:
            _LOG.warning("%s %s holds no keys any more", _WHAT, self._path)
        self._keys = keys

    def _settled_stamp(self) -> FileStamp | None:
        """Return what tells the file from a later one; None if nothing does so yet."""
        try:
            stamp = FileStamp.of(self._path)
        except OSError:  # reading says what is wrong with it
            return None
        age_ns = self._now() * 1e9 - max(stamp.mtime_ns, stamp.ctime_ns)
        return stamp if age_ns >= _MIN_AGE_NS else None

    def _read(self) -> dict[str, ApiKey]:
        try:
            data = read_private(self._path, _WHAT, max_bytes=_MAX_BYTES)
        except FileNotFoundError:
            return {}
        try:
            return parse_keys(data)
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise ConfigError(
                f"{_WHAT} {self._path} is damaged or of another release: restore it, or "
                "remove it and make new keys with 'prefold keys new'"
            ) from exc


def default_key_path() -> Path:
    """Return the key file in the user's state directory.

    Raises:
        ConfigError: The user has no home.
    """
    return state_dir() / "api_keys.json"


def digest_key(text: str) -> str:
    """Return what the file holds of the key ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()


def parse_public_id(text: str) -> str:
    """Return the public id in ``text``, which is one, a key, or a key's visible part.

    Raises:
        InvalidInputError: There is none in it. The message does not repeat it, since it
            may be a secret.
    """
    public_id = text.removeprefix("pf_").partition("_")[0]
    if not PUBLIC_ID.fullmatch(public_id):
        raise InvalidInputError(
            "a key's id has 16 hexadecimal digits, such as 9f2c41d0a7b35e68; "
            "'prefold keys list' shows all"
        )
    return public_id
