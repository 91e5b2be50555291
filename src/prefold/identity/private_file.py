"""Private files: small files with secrets, which only their owner may touch.

They are written under another name and then put in place, complete and with mode 0600
from the first byte, so that no reader meets half a file and nobody else one of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefold.errors import ConfigError


def read_private(
    path: Path, what: str, *, max_bytes: int, must_be_own: bool = False
) -> bytes:
    """Return the file's content.

    Args:
        path: The file.
        what: What messages call it, such as "the key file".
        max_bytes: Size up to which it can be what it should be.
        must_be_own: Whether it must belong to this user, or to root.

    Raises:
        FileNotFoundError: There is no such file.
        ConfigError: It cannot be read, is not a regular file, is larger, belongs to
            somebody else, or others than its owner can access it.
    """
    try:
        # Everything is asked of the open file, so it cannot be exchanged in between.
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            _check_kind(status, path, what)
            if must_be_own and status.st_uid not in {0, os.geteuid()}:
                raise ConfigError(
                    f"{what} {path} belongs to another user, who can read it: make a new "
                    "one"
                )
            _check_access(status, path, what, max_bytes)
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise ConfigError(f"cannot read {what} {path}: {exc.strerror}") from exc
    if len(data) > max_bytes:
        raise ConfigError(f"{what} {path} is larger than {max_bytes} bytes")
    return data


def replace_private(path: Path, data: bytes) -> None:
    """Write the file in place of the one that is there, if any.

    Raises:
        OSError: It cannot be written; what was there before is still there.
    """
    with _partial(path, data) as partial:
        partial.replace(path)


def create_private(path: Path, data: bytes) -> None:
    """Write the file unless there is one already, such as one of a faster process.

    Raises:
        OSError: It cannot be written.
    """
    with _partial(path, data) as partial:
        try:
            # Linking fails where renaming would replace a faster process's file.
            os.link(partial, path)
        except FileExistsError:
            return


@contextmanager
def lock_beside(path: Path) -> Iterator[None]:
    """Keep other processes, and threads, that do the same out meanwhile; waits for them.

    The lock is an empty file next to ``path``, because ``path`` itself is replaced.

    Raises:
        OSError: The lock cannot be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_kind(status: os.stat_result, path: Path, what: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what} {path} is not a regular file")


def _check_access(status: os.stat_result, path: Path, what: str, max_bytes: int) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"{what} {path} can be accessed by others (mode {mode:04o}): make a new one, "
            f"or run chmod 600 {path} if nobody else has touched it"
        )
    if status.st_size > max_bytes:
        raise ConfigError(
            f"{what} {path} has {status.st_size} bytes, at most {max_bytes} make sense"
        )


@contextmanager
def _partial(path: Path, data: bytes) -> Iterator[Path]:
    """Write ``data`` next to ``path``; the body puts it in place, nothing else stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(
        partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        yield partial
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _open_at_once(path: str, flags: int) -> int:
    # A pipe of that name would otherwise block the start.
    return os.open(path, flags | os.O_NONBLOCK)


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
