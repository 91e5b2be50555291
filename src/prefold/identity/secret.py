"""The master secret: 32 random bytes from which every domain's key is derived.

Whoever has them can compute every domain's keys, so they live in one file that only
its owner can read, and no representation shows them. Reading or making that file
happens only in ``MasterSecret.load_or_create``, and only when it is called.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import NoReturn

from prefold.errors import ConfigError, InvalidInputError
from prefold.identity.domain import Audience
from prefold.identity.encoding import digest

SECRET_BYTES = 32

#: Names the file to use in place of the one in the user's state directory.
SECRET_FILE_VARIABLE = "PREFOLD_MASTER_SECRET_FILE"  # noqa: S105 -- a variable's name


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
        except OSError as exc:
            raise ConfigError(
                f"cannot read the master secret {path}: {exc.strerror}"
            ) from exc
        try:
            _create_secret(path)
            return cls(_read_secret(path))
        except OSError as exc:
            raise ConfigError(
                f"cannot make the master secret {path}: {exc.strerror}"
            ) from exc

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
    # Everything is asked of the open file, so it cannot be exchanged in between.
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the master secret {path} is not a regular file")
        if status.st_uid not in {0, os.geteuid()}:
            raise ConfigError(
                f"the master secret {path} belongs to another user, who can read it: "
                "make a new one"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise ConfigError(
                f"the master secret {path} can be accessed by others (mode {mode:04o}): "
                f"make a new one, or run chmod 600 {path} if nobody has read it"
            )
        if status.st_size != SECRET_BYTES:
            raise ConfigError(
                f"the master secret {path} must have {SECRET_BYTES} bytes, "
                f"it has {status.st_size}"
            )
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    # A pipe of that name would otherwise block the start.
    return os.open(path, flags | os.O_NONBLOCK)


def _create_secret(path: Path) -> None:
    """Make the file in one step, complete and private, unless another process did.

    It is written under another name and then linked, so no reader meets half a file,
    and linking fails where renaming would replace the secret of a faster process.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(
        partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(descriptor)
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        partial.unlink()
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        # Some network file systems cannot; the file itself is written.
        if exc.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
