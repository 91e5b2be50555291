"""The kept directory: made once, with effort, and then either complete or not there.

It is built next to its place and moved there in one step, so no crash leaves half of
it under its name. While it is built a lock is held, which the system drops with its
process; whoever holds the lock therefore knows that every unfinished build it finds
belongs to a process that is gone, and removes it::

    models/NAME                 the directory, with its manifest
    models/.NAME.lock           the lock, an empty file that stays
    models/.NAME.x7ab.partial   a build in progress: scratch/, result/
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

MANIFEST_NAME = "prefold-manifest.json"

_FORMAT = 1
_MAX_MANIFEST_BYTES = 2**20

#: How much of each file is compared at every start: small files whole, and of weights
#: the part that says what they are. Damage further on changes the weights digest.
_HEAD_BYTES = 16 * 2**20

#: Fills the second directory; the first takes what is needed on the way.
Build: TypeAlias = Callable[[Path, Path], None]


class KeptDirectory:
    """One such directory, of flat files.

    Args:
        path: Its place; the directory above is made when needed.
        origin: What it is made from and how; another origin makes it another thing.
    """

    __slots__ = ("_origin", "path")

    def __init__(self, path: Path, *, origin: str) -> None:
        self.path = path
        self._origin = origin

    def find_fault(self) -> str | None:
        """Say what is wrong with it, as the end of a sentence; ``None`` if nothing is."""
        try:
            self._check()
        except _FaultError as fault:
            return str(fault)
        except OSError as exc:
            return f"it cannot be read: {exc.strerror}"
        return None

    def ensure(self, build: Build, *, on_wait: Callable[[], None]) -> None:
        """Make it with ``build`` unless it is there and complete.

        Something else in its place is removed once the new one is finished. If
        ``build`` raises, everything is as before.

        Args:
            build: Called at most once, with two empty directories on the same disk.
            on_wait: Called if another process is making it and this one has to wait.

        Raises:
            OSError: A file cannot be read or written, or the disk cannot be locked.
        """
        if self.find_fault() is None:
            self._try_tidy()
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock(on_wait):
            self._tidy()
            if self.find_fault() is not None:
                self._build(build)

    def _check(self) -> None:
        if not self.path.is_dir():
            exists = os.path.lexists(self.path)
            raise _FaultError("it is not a directory" if exists else "it is missing")
        files = self._read_manifest()
        present = {path.name for path in self.path.iterdir() if path.name[0] != "."}
        for name in sorted((present | files.keys()) - {MANIFEST_NAME}):
            # An additional file counts: it can change what is loaded.
            if name not in files:
                raise _FaultError(f"{name} does not belong there")
            if name not in present:
                raise _FaultError(f"{name} is missing")
            if _describe(self.path / name) != files[name]:
                raise _FaultError(f"{name} has other contents than it was made with")

    def _build(self, build: Build) -> None:
        partial = Path(
            tempfile.mkdtemp(
                prefix=f".{self.path.name}.", suffix=".partial", dir=self.path.parent
            )
        )
        try:
            scratch, result = partial / "scratch", partial / "result"
            scratch.mkdir()
            result.mkdir()
            build(scratch, result)
            self._write_manifest(result)
            for path in result.iterdir():
                _sync(path)
            _sync(result)
            if os.path.lexists(self.path):
                self.path.rename(partial / "replaced")
            result.rename(self.path)
            _sync(self.path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _write_manifest(self, result: Path) -> None:
        files = {path.name: _describe(path) for path in sorted(result.iterdir())}
        document = {"format": _FORMAT, "origin": self._origin, "files": files}
        text = json.dumps(document, indent=1) + "\n"
        (result / MANIFEST_NAME).write_text(text, encoding="utf-8")

    def _read_manifest(self) -> dict[str, dict[str, object]]:
        try:
            with (self.path / MANIFEST_NAME).open("rb") as file:
                document = json.loads(file.read(_MAX_MANIFEST_BYTES))
            if document["format"] != _FORMAT or document["origin"] != self._origin:
                raise _FaultError("it was made from something else")
            return dict(document["files"])
        except FileNotFoundError as exc:
            raise _FaultError("its manifest is missing") from exc
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            raise _FaultError("its manifest is damaged") from exc

    def _try_tidy(self) -> None:
        """Remove what a process left that ended between its move and its clean-up."""
        try:
            if self._partials():
                with self._lock(None):
                    self._tidy()
        except OSError:
            # Somebody is at work, or the directory is read-only; both can wait.
            return

    def _tidy(self) -> None:
        for partial in self._partials():
            shutil.rmtree(partial, ignore_errors=True)

    def _partials(self) -> list[Path]:
        return list(self.path.parent.glob(f".{self.path.name}.*.partial"))

    @contextmanager
    def _lock(self, on_wait: Callable[[], None] | None) -> Iterator[None]:
        """Hold the lock; without ``on_wait``, raise ``BlockingIOError`` if it is taken."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.path.parent / f".{self.path.name}.lock", flags, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if on_wait is None:
                    raise
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _FaultError(Exception):
    """The directory is not what its manifest vouches for; the message says why."""


def _describe(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
    return {"size": size, "head_sha256": hashlib.sha256(head).hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        # Some network file systems cannot do it for directories.
        if exc.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)
