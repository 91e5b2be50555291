"""A second encoder, written from the description alone, with slips on demand.

It shares no code with ``prefold.identity.encoding``. Each slip leaves out one thing that
makes the encoding injective; a set of inputs is a test of injectivity only if it
makes every slip collide.
"""

from __future__ import annotations

import hashlib
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from prefold.identity.encoding import Field


class Slip(Enum):
    NO_TAG = auto()
    NO_LENGTH = auto()
    NO_TUPLE_LENGTH = auto()
    NO_TYPE = auto()
    LENGTH_IN_ONE_BYTE = auto()
    NONE_IS_EMPTY_BYTES = auto()
    BOOL_IS_INT = auto()
    TEXT_IS_BYTES = auto()
    SIGN_IS_LOST = auto()
    ZERO_SIGN_IS_LOST = auto()
    ARRAY_IN_32_BITS = auto()
    TUPLE_IS_FLAT = auto()


def reference_encode(tag: str, *fields: Field, slip: Slip | None = None) -> bytes:
    out = bytearray((1, 0))
    if slip is not Slip.NO_TAG:
        out += _framed("s", tag.encode(), slip)
    for field in fields:
        out += _encode_field(field, slip)
    return bytes(out)


def reference_digest(tag: str, *fields: Field, key: bytes = b"") -> bytes:
    hasher = hashlib.blake2b(key=key, digest_size=32, person=tag.encode().ljust(16, b"\0"))
    hasher.update(reference_encode(tag, *fields))
    return hasher.digest()


def _framed(letter: str, payload: bytes, slip: Slip | None) -> bytes:
    kind = b"" if slip is Slip.NO_TYPE else letter.encode()
    length = _little(len(payload), 8)
    if slip is Slip.NO_LENGTH or (slip is Slip.NO_TUPLE_LENGTH and letter == "t"):
        length = b""
    elif slip is Slip.LENGTH_IN_ONE_BYTE:
        length = length[:1]
    return kind + length + payload


def _encode_field(field: Field, slip: Slip | None) -> bytes:
    if isinstance(field, tuple):
        inner = b"".join(_encode_field(item, slip) for item in field)
        return inner if slip is Slip.TUPLE_IS_FLAT else _framed("t", inner, slip)
    if field is None:
        return _framed("y" if slip is Slip.NONE_IS_EMPTY_BYTES else "n", b"", slip)
    if isinstance(field, str):
        letter = "y" if slip is Slip.TEXT_IS_BYTES else "s"
        return _framed(letter, field.encode(errors="surrogatepass"), slip)
    if isinstance(field, bytes):
        return _framed("y", field, slip)
    return _array(field, slip) if isinstance(field, np.ndarray) else _number(field, slip)


def _array(array: npt.NDArray[np.int64], slip: Slip | None) -> bytes:
    width = 4 if slip is Slip.ARRAY_IN_32_BITS else 8
    numbers = (int(number) % 2 ** (8 * width) for number in array)
    return _framed("a", b"".join(_little(number, width) for number in numbers), slip)


def _number(number: float, slip: Slip | None) -> bytes:
    if isinstance(number, bool) and slip is not Slip.BOOL_IS_INT:
        return _framed("b", _little(int(number), 1), slip)
    if isinstance(number, int):
        width = 1
        while not -(2 ** (8 * width - 1)) <= number < 2 ** (8 * width - 1):
            width += 1
        if slip is Slip.SIGN_IS_LOST:
            number = abs(number)
        return _framed("i", _little(number % 2 ** (8 * width), width), slip)
    if slip is Slip.ZERO_SIGN_IS_LOST:
        number += 0.0
    return _framed("f", np.array([number], "<f8").tobytes(), slip)


def _little(number: int, width: int) -> bytes:
    return bytes(number >> (8 * place) & 255 for place in range(width))
