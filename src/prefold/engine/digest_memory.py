"""The digest memory: digests of files that have not changed since they were read.

One small JSON file. It saves time and decides nothing else: without it, or with a
damaged one, every file is read again. A file is known by everything that changes when
its content does. Time stamps are coarse, so a file changed moments ago could change
again under the same stamps; one younger than two seconds is never answered for.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from prefold.identity.encoding import DIGEST_BYTES

_FORMAT = 1
_MIN_AGE_NS = 2 * 10**9
_MAX_FILES = 512
_MAX_BYTES = 2**20

_LOG = logging.getLogger(__name__)

_Entries: TypeAlias = dict["FileStamp", bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """What is compared to tell that a file has not changed; ``path`` follows links."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Return the stamp of the file as it is now.

        Raises:
            OSError: There is no such file, or it cannot be reached.
        """
        status = path.stat()
        return cls(
            path=os.path.realpath(path),
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            inode=status.st_ino,
            device=status.st_dev,
        )


class DigestMemory:
    """The remembered digests in one file, which several processes may use at once.

    The file is replaced as a whole. Of two processes that add to it at the same moment
    one may lose what it added, which costs it another reading.

    Args:
        path: The file; it and its directory are made when there is something to keep.
        now_ns: The clock that file times are taken from.
    """

    __slots__ = ("_now_ns", "_path")

    def __init__(self, path: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._now_ns = now_ns

    def is_settled(self, stamp: FileStamp) -> bool:
        """Tell whether a change from now on would show in the file's times."""
        return self._now_ns() - max(stamp.mtime_ns, stamp.ctime_ns) >= _MIN_AGE_NS

    def recall(self, stamps: Mapping[Path, FileStamp]) -> dict[Path, bytes]:
        """Return the digests of those files that are known, settled and unchanged."""
        entries = self._read()
        return {
            path: entries[stamp]
            for path, stamp in stamps.items()
            if stamp in entries and self.is_settled(stamp)
        }

    def keep(self, digests: Mapping[FileStamp, bytes]) -> None:
        """Remember ``digests``, in place of what was known under the same paths.

        The caller vouches that each file was settled before it was read. A memory that
        cannot be written is noted in the log and does no harm.
        """
        if not digests:
            return
        replaced = {stamp.path for stamp in digests}
        entries = {
            stamp: value
            for stamp, value in self._read().items()
            if stamp.path not in replaced and os.path.exists(stamp.path)  # noqa: PTH110 -- never raises
        }
        entries.update(digests)
        newest = list(entries.items())[-_MAX_FILES:]
        document = {
            "format": _FORMAT,
            "files": [asdict(stamp) | {"digest": value.hex()} for stamp, value in newest],
        }
        try:
            replace_file(self._path, json.dumps(document, indent=1).encode())
        except OSError as exc:
            _LOG.warning("cannot remember digests in %s: %s", self._path, exc.strerror)

    def _read(self) -> _Entries:
        try:
            with self._path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            _LOG.warning("cannot read the digests in %s: %s", self._path, exc.strerror)
            return {}
        try:
            return _parse(data)
        except (ValueError, TypeError, KeyError, RecursionError):
            _LOG.warning("%s is damaged; the files are read again", self._path)
            return {}


def _parse(data: bytes) -> _Entries:
    """Read the document strictly: half a memory is no memory."""
    if len(data) > _MAX_BYTES:
        raise ValueError("too long")
    document = json.loads(data)
    if document["format"] != _FORMAT:
        return {}  # another release's, which is no damage
    return dict(_parse_entry(entry) for entry in document["files"])


def _parse_entry(entry: Mapping[str, object]) -> tuple[FileStamp, bytes]:
    path, text = entry["path"], entry["digest"]
    if not isinstance(path, str) or not isinstance(text, str):
        raise TypeError("not a text")
    value = bytes.fromhex(text)
    if len(value) != DIGEST_BYTES:
        raise ValueError("not a digest")
    stamp = FileStamp(
        path=path,
        size=_number(entry["size"]),
        mtime_ns=_number(entry["mtime_ns"]),
        ctime_ns=_number(entry["ctime_ns"]),
        inode=_number(entry["inode"]),
        device=_number(entry["device"]),
    )
    return stamp, value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a number")
    return value


def replace_file(path: Path, data: bytes) -> None:
    """Write the file so that a reader meets the old one or the new one, complete."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
