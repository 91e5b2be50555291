"""Content: digests of what fills token positions without being a token.

An image or an embedding takes up a span of positions. In a token array these hold
negative numbers, which only serve to compare quickly within one process; what the
positions really hold is the digest of the item and the offset in it, and that is what
enters every key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefold.errors import InvalidInputError
from prefold.identity.encoding import DIGEST_BYTES, Field, digest

#: Kinds of dtype whose bytes are the value: booleans, integers, floats, complex numbers.
_PLAIN_KINDS = frozenset("biufc")


@dataclass(frozen=True, slots=True)
class ContentSpan:
    """A stretch of positions filled by one item, or by a part of it.

    Attributes:
        start: First position, in the token array that the span comes with.
        end: One past the last position.
        digest: The item's digest, 32 bytes.
        offset: Which of the item's positions ``start`` is; above 0 where a
            span was cut.
    """

    start: int
    end: int
    digest: bytes
    offset: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InvalidInputError(f"a span cannot be from {self.start} to {self.end}")
        if self.offset < 0:
            raise InvalidInputError(f"offset must be at least 0, got {self.offset}")
        if len(self.digest) != DIGEST_BYTES:
            raise InvalidInputError(
                f"a content digest has {DIGEST_BYTES} bytes, got {len(self.digest)}"
            )


def cut_spans(
    spans: tuple[ContentSpan, ...], start: int, end: int
) -> tuple[ContentSpan, ...]:
    """Return what lies in positions [start, end), counted from ``start``."""
    return tuple(
        ContentSpan(
            max(span.start, start) - start,
            min(span.end, end) - start,
            span.digest,
            span.offset + max(start - span.start, 0),
        )
        for span in spans
        if span.start < end and span.end > start
    )


def image_digest(
    pixels: npt.NDArray[np.generic],
    *,
    mode: str,
    palette: bytes | None,
    options: tuple[Field, ...],
) -> bytes:
    """Digest a decoded image: its pixels with shape and dtype, and how they are meant.

    Args:
        pixels: Of any plain dtype; equal bytes of another shape or dtype differ.
        mode: The colour mode, such as ``RGB`` or ``P``.
        palette: What palette indices stand for; None if the mode has no palette.
        options: Everything in the preprocessing that changes what the model sees,
            such as grid and patch size.
    """
    return digest("image", *_array_fields(pixels), mode, palette, options)


def embedding_digest(
    values: npt.NDArray[np.generic], *, options: tuple[Field, ...]
) -> bytes:
    """Digest embeddings given in place of tokens, with their shape and dtype."""
    return digest("embedding", *_array_fields(values), options)


def _array_fields(array: npt.NDArray[np.generic]) -> tuple[Field, ...]:
    if array.dtype.kind not in _PLAIN_KINDS:
        raise InvalidInputError(
            f"an array of dtype {array.dtype} has no plain bytes to digest"
        )
    return array.dtype.str, tuple(array.shape), array.tobytes()
