"""The master secret: 32 random bytes from which every domain's key is derived.

Whoever has them can compute every domain's keys, so they live in one file that only
its owner can read, and no representation shows them. Reading or making that file
happens only in ``MasterSecret.load_or_create``, and only when it is called.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from prefold.errors import ConfigError, InvalidInputError
from prefold.identity.domain import Audience
from prefold.identity.encoding import digest
from prefold.identity.private_file import create_private, read_private

SECRET_BYTES = 32

#: Names the file to use in place of the one in the user's state directory.
SECRET_FILE_VARIABLE = "PREFOLD_MASTER_SECRET_FILE"  # noqa: S105 -- a variable's name

_WHAT = "the master secret"
#: A file of more is not even looked at.
_MAX_FILE_BYTES = 4096


class MasterSecret:
    """The root of all domain keys; frozen, and silent about its bytes."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise InvalidInputError(
                f"a master secret has {SECRET_BYTES} bytes, got {len(secret)}"
            )
        self._secret = bytes(secret)

    def __repr__(self) -> str:
        return "MasterSecret(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a master secret cannot be copied or serialised")

    @classmethod
    def generate(cls) -> MasterSecret:
        """Return a new secret, which ends with this process."""
        return cls(os.urandom(SECRET_BYTES))

    @classmethod
    def load_or_create(cls, path: Path) -> MasterSecret:
        """Read the secret in ``path``; make the file first if there is none.

        Of several processes that make it at once, all return the secret of the one
        that was first.

        Raises:
            ConfigError: The file cannot be read or made, is not a regular file, has
                another length, or can be accessed by others than its owner.
        """
        try:
            return cls(_read_secret(path))
        except FileNotFoundError:
            pass
        try:
            create_private(path, os.urandom(SECRET_BYTES))
            return cls(_read_secret(path))
        except OSError as exc:
            raise ConfigError(f"cannot make {_WHAT} {path}: {exc.strerror}") from exc

    def domain_key(self, audience: Audience) -> bytes:
        """Return the 32-byte key of what ``audience`` may read."""
        domain = audience.domain
        return digest(
            "domain-key",
            audience.kind.value,
            domain.path,
            domain.salt,
            audience.serial,
            key=self._secret,
        )


def default_secret_path() -> Path:
    """Return the file named by the environment, or the one in the user's state directory.

    Raises:
        ConfigError: The environment names no file, and the user has no home.
    """
    named = os.environ.get(SECRET_FILE_VARIABLE)
    if named:
        return Path(named)
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # the convention is to ignore a relative one
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError as exc:
            raise ConfigError(
                f"the user has no home directory; set {SECRET_FILE_VARIABLE} to a file"
            ) from exc
    return state / "prefold" / "master_secret"


def _read_secret(path: Path) -> bytes:
    data = read_private(path, _WHAT, max_bytes=_MAX_FILE_BYTES, must_be_own=True)
    if len(data) != SECRET_BYTES:
        raise ConfigError(
            f"{_WHAT} {path} must have {SECRET_BYTES} bytes, it has {len(data)}"
        )
    return data
