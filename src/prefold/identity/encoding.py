"""The encoding: the one way in which values become bytes to be hashed.

::

    encode(tag, *fields) = version, frame(tag), frame(field), frame(field), ...
    frame(value)         = type (1 byte), length of the payload (8 bytes), payload

The type keeps ``None``, ``""``, ``b""``, ``()``, ``False`` and ``0`` apart; the length
keeps a byte from moving into the neighbouring field; the tag keeps two uses of
the same fields apart. So the encoding is injective: different arguments never
give the same bytes, and equal digests mean equal values.

All numbers are little-endian, so keys written by one machine hold on another.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prefold.errors import InvalidInputError

Field: TypeAlias = (
    "bool | int | float | str | bytes | npt.NDArray[np.int64] | tuple[Field, ...] | None"
)

#: Begins every encoding.  Raise it whenever the encoding changes, so that what an
#: older release wrote misses instead of being misread.
ENCODING_VERSION = 1

DIGEST_BYTES = 32

#: BLAKE2b's ``person`` holds 16 bytes and is padded with zeros, which no tag contains.
_TAG_PATTERN = re.compile(r"[a-z0-9-]{1,16}")

_VERSION = struct.pack("<H", ENCODING_VERSION)
_LENGTH = struct.Struct("<Q")
_FLOAT = struct.Struct("<d")
_INT64_BYTES = 8
_NONE, _BOOL, _INT, _REAL, _TEXT, _BYTES, _ARRAY, _TUPLE = (
    bytes([letter]) for letter in b"nbifsyat"
)


def encode(tag: str, *fields: Field) -> bytes:
    """Encode ``fields`` injectively, for the use that ``tag`` names.

    Args:
        tag: 1 to 16 of the characters a-z, 0-9 and ``-``.
        fields: Arrays are one-dimensional int64. ``0.0`` and ``-0.0`` differ.

    Raises:
        InvalidInputError: A malformed tag, a value of another type, or a NaN,
            which is not equal even to itself.
    """
    if not _TAG_PATTERN.fullmatch(tag):
        raise InvalidInputError(f"a tag has 1 to 16 of a-z, 0-9 and -, got {tag!r}")
    return _VERSION + _frame(tag) + b"".join(map(_frame, fields))


def digest(tag: str, *fields: Field, key: bytes | None = None) -> bytes:
    """Return the 32-byte BLAKE2b digest of ``encode(tag, *fields)``.

    Args:
        tag: As for ``encode``; also BLAKE2b's ``person``.
        fields: As for ``encode``.
        key: 32 bytes that make the digest a number nobody without them can predict.

    Raises:
        InvalidInputError: As for ``encode``, or ``key`` has another length.
    """
    data = encode(tag, *fields)
    person = tag.encode("ascii")
    if key is None:
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=person).digest()
    # An empty key would silently give the unkeyed digest.
    if len(key) != DIGEST_BYTES:
        raise InvalidInputError(f"a key has {DIGEST_BYTES} bytes, got {len(key)}")
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=person, key=key).digest()


def digest_chain(
    tag: str, first: bytes, values: npt.NDArray[np.int64], part_len: int
) -> list[bytes]:
    """Digest consecutive whole parts of ``values``, each together with its predecessor.

    Link i is ``digest(tag, link[i - 1], values[i * part_len : (i + 1) * part_len])``, and
    ``first`` stands before link 0; a shorter rest is left out. Bytes that are equal in
    every link are made once, so a link costs a fifth of what ``digest`` costs.

    Args:
        tag: As for ``encode``.
        first: 32 bytes, as every later link has.
        values: One-dimensional int64.
        part_len: Numbers in a part, at least 1.

    Raises:
        InvalidInputError: As for ``encode``, or ``first`` or ``part_len`` is too short.
    """
    if len(first) != DIGEST_BYTES or part_len < 1:
        raise InvalidInputError(
            f"a chain starts from {DIGEST_BYTES} bytes and parts of at least 1, "
            f"got {len(first)} and {part_len}"
        )
    num_bytes = part_len * _INT64_BYTES
    begun = hashlib.blake2b(
        encode(tag) + _BYTES + _LENGTH.pack(DIGEST_BYTES),
        digest_size=DIGEST_BYTES,
        person=tag.encode("ascii"),
    )
    before_part = _ARRAY + _LENGTH.pack(num_bytes)
    data = _array_bytes(values[: len(values) // part_len * part_len])

    links: list[bytes] = []
    link = first
    for start in range(0, len(data), num_bytes):
        # Copying a begun hash takes half the time of constructing one.
        hasher = begun.copy()
        hasher.update(link + before_part + data[start : start + num_bytes])
        link = hasher.digest()
        links.append(link)
    return links


def _frame(value: Field) -> bytes:
    kind, payload = _kind_and_payload(value)
    return kind + _LENGTH.pack(len(payload)) + payload


def _kind_and_payload(value: Field) -> tuple[bytes, bytes]:
    match value:
        case None:
            framed = _NONE, b""
        case bool():  # before int, of which it is a subclass
            framed = _BOOL, b"\x01" if value else b"\x00"
        case int():
            framed = _INT, _int_bytes(value)
        case float():
            framed = _REAL, _float_bytes(value)
        case str():
            # Lone surrogates occur in file names and tokenizer files; UTF-8 stays
            # injective when they are passed through.
            framed = _TEXT, value.encode("utf-8", "surrogatepass")
        case bytes():
            framed = _BYTES, value
        case np.ndarray():
            framed = _ARRAY, _array_bytes(value)
        case tuple():
            framed = _TUPLE, b"".join(map(_frame, value))
        case _:
            raise InvalidInputError(f"a {type(value).__name__} cannot be encoded")
    return framed


def _int_bytes(value: int) -> bytes:
    # The shortest two's complement form: the bits, and one more for the sign.
    num_bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((num_bits + 7) // 8, "little", signed=True)


def _float_bytes(value: float) -> bytes:
    if math.isnan(value):
        raise InvalidInputError("NaN cannot be encoded")
    return _FLOAT.pack(value)


def _array_bytes(array: npt.NDArray[np.int64]) -> bytes:
    if array.dtype != np.int64 or array.ndim != 1:
        raise InvalidInputError(
            f"an array must be one-dimensional int64, got {array.dtype} {array.shape}"
        )
    return array.astype("<i8", copy=False).tobytes()
