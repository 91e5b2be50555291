"""Trace lines: the rows of a JSON-lines file, plain or gzip, one at a time.

Memory is bounded by one line, and a line by ``MAX_LINE_BYTES``, whatever the file is. What
cannot be read is noted and passed over; a note says where and why, and never repeats what
stood there, which may be somebody's prompt.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from prefold.errors import InvalidInputError

#: A longer line is no request. Prompts of a million tokens take less as text.
MAX_LINE_BYTES = 64 * 2**20

#: Problems kept one by one; beyond them they are only counted.
MAX_LISTED_PROBLEMS = 100

_CHUNK_BYTES = 2**20
#: Less, because what comes before damage is looked for byte by byte.
_PACKED_BYTES = 2**16
_GZIP_MAGIC = b"\x1f\x8b"
#: zlib's word for "with a gzip header".
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProblem:
    """Something in a trace that was passed over.

    Attributes:
        line: Counted from 1.
        reason: Without a full stop, and without anything of the line's own text.
    """

    path: Path
    line: int
    reason: str

    def describe(self) -> str:
        """Return place and reason in one line."""
        return f"{self.path}:{self.line}: {self.reason}"


class TraceProblems:
    """Notes what is wrong with one file; in strict mode, refuses it.

    Attributes:
        listed: The first ``MAX_LISTED_PROBLEMS``.
        num_found: All of them.
    """

    __slots__ = ("_is_strict", "_path", "listed", "num_found")

    def __init__(self, path: Path, *, is_strict: bool) -> None:
        self._path = path
        self._is_strict = is_strict
        self.listed: list[TraceProblem] = []
        self.num_found = 0

    def note(self, line: int, reason: str) -> None:
        """Note a problem.

        Raises:
            InvalidInputError: In strict mode, with place and reason.
        """
        problem = TraceProblem(path=self._path, line=line, reason=reason)
        if self._is_strict:
            raise InvalidInputError(problem.describe())
        self.num_found += 1
        if len(self.listed) < MAX_LISTED_PROBLEMS:
            self.listed.append(problem)


class _DamagedError(Exception):
    """The compressed data cannot be read on from here."""


def read_rows(
    path: Path, problems: TraceProblems
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield each JSON object of a file with its line number; empty lines are nothing.

    Raises:
        InvalidInputError: The file cannot be read at all, or, in strict mode, something
            of it cannot.
    """
    for number, line in _lines(path, problems):
        if not line.strip():
            continue
        try:
            row: object = json.loads(line)
        except json.JSONDecodeError as error:
            problems.note(number, f"no valid JSON at character {error.pos + 1}")
        except (ValueError, RecursionError):
            # Not UTF-8, a number of thousands of digits, or brackets nested as deeply.
            problems.note(number, "no valid JSON")
        else:
            if isinstance(row, dict):
                yield number, row
            else:
                problems.note(number, "no JSON object")


def _lines(path: Path, problems: TraceProblems) -> Iterator[tuple[int, bytes]]:
    number, parts, num_bytes = 1, list[bytes](), 0
    try:
        for piece, ends in _pieces(path):
            num_bytes += len(piece)
            # Of a line that is too long nothing is kept, but its end is looked for.
            if num_bytes <= MAX_LINE_BYTES:
                parts.append(piece)
            if not ends:
                continue
            if num_bytes > MAX_LINE_BYTES:
                problems.note(number, f"longer than {MAX_LINE_BYTES} bytes")
            else:
                yield number, b"".join(parts)
            number, parts, num_bytes = number + 1, [], 0
    except _DamagedError as damage:
        problems.note(number, str(damage))


def _pieces(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces of lines, and whether the line ends with them."""
    for chunk in _chunks(path):
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            yield piece, True
        if rest:
            yield rest, False
    # The last line need not end with a line break.
    yield b"", True


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            start = file.read(len(_GZIP_MAGIC))
            file.seek(0)
            if start == _GZIP_MAGIC:
                yield from _unzipped(file)
            else:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error.strerror or error}"
        ) from error


def _unzipped(file: BinaryIO) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP_WINDOW)
    packed = b""
    while True:
        packed = packed or file.read(_PACKED_BYTES)
        if not packed:
            break
        if member.eof:
            # Members may follow one another; zeros may fill the rest of a tape.
            packed = packed.lstrip(b"\0")
            if not packed:
                continue
            member = zlib.decompressobj(_GZIP_WINDOW)
        before = member.copy()
        try:
            # A bound, because a small input may unpack to any length.
            chunk = member.decompress(packed, _CHUNK_BYTES)
        except zlib.error as error:
            yield _salvaged(before, packed)
            raise _DamagedError("the gzip data is damaged from here on") from error
        packed = member.unused_data if member.eof else member.unconsumed_tail
        if chunk:
            yield chunk
    if not member.eof:
        raise _DamagedError("the gzip data ends too early, here")


def _salvaged(member: zlib._Decompress, packed: bytes) -> bytes:
    """Return what comes before the damage; a call that meets it returns nothing."""
    found = bytearray()
    try:
        for at in range(len(packed)):
            found += member.decompress(packed[at : at + 1], _CHUNK_BYTES)
    except zlib.error:
        return bytes(found)
    return bytes(found)
