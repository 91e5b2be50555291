from __future__ import annotations

import itertools

import numpy as np
import pytest

from prefold.errors import InvalidInputError
from prefold.identity.content import ContentSpan, cut_spans, embedding_digest, image_digest

PIXELS = np.arange(3000, dtype=np.uint8)
ITEM = bytes(range(32))


def test_equal_bytes_with_another_meaning_have_another_digest() -> None:
    digests = [
        image_digest(
            PIXELS.reshape(shape).view(dtype), mode=mode, palette=palette, options=options
        )
        for shape in [(30, 100), (100, 30), (3000, 1), (1, 30, 100)]
        for dtype in [np.uint8, np.int8]
        for mode in ["P", "L"]
        for palette in [None, b"", b"a", b"aa"]
        for options in [(), ("a",), ("a", 14), (14, "a"), (("a", 14),)]
    ]
    assert len(set(digests)) == len(digests)


def test_every_pixel_counts() -> None:
    digests = set()
    for row, column in itertools.product(range(5), range(7)):
        pixels = np.zeros((5, 7), dtype=np.uint8)
        pixels[row, column] = 1
        digests.add(image_digest(pixels, mode="L", palette=None, options=()))
    assert len(digests) == 35


def test_the_memory_order_of_equal_pixels_makes_no_difference() -> None:
    pixels = PIXELS.reshape(30, 100)
    for same in [
        np.asfortranarray(pixels),
        np.repeat(pixels, 2, axis=0)[::2],
        pixels.copy(),
    ]:
        assert image_digest(same, mode="L", palette=None, options=()) == image_digest(
            pixels, mode="L", palette=None, options=()
        )


def test_embeddings_differ_by_shape_dtype_options_and_kind() -> None:
    values = np.arange(12, dtype=np.float32)
    digests = [
        embedding_digest(values.reshape(shape).view(dtype), options=options)
        for shape in [(3, 4), (4, 3), (12, 1)]
        for dtype in [np.float32, np.int32, np.uint32]
        for options in [(), ("a",)]
    ]
    image = image_digest(values.reshape(3, 4), mode="F", palette=None, options=())
    assert len({*digests, image}) == len(digests) + 1


@pytest.mark.parametrize("dtype", ["O", "V4", "U1", "datetime64[s]"])
def test_arrays_without_plain_bytes_are_refused(dtype: str) -> None:
    with pytest.raises(InvalidInputError, match="no plain bytes"):
        embedding_digest(np.zeros(2, dtype=dtype), options=())


@pytest.mark.parametrize(
    ("start", "end", "digest", "offset"),
    [
        (-1, 2, ITEM, 0),
        (2, 2, ITEM, 0),
        (3, 2, ITEM, 0),
        (0, 1, b"short", 0),
        (0, 1, ITEM, -1),
    ],
)
def test_malformed_spans_are_refused(
    start: int, end: int, digest: bytes, offset: int
) -> None:
    with pytest.raises(InvalidInputError):
        ContentSpan(start, end, digest, offset)


@pytest.mark.parametrize(("start", "end"), list(itertools.combinations(range(9), 2)))
def test_cutting_spans_keeps_what_each_position_holds(start: int, end: int) -> None:
    spans = (
        ContentSpan(1, 3, ITEM, 5),
        ContentSpan(3, 4, b"o" * 32),
        ContentSpan(6, 8, ITEM),
    )
    expected = {
        p - start: held for p, held in _positions(spans).items() if start <= p < end
    }
    assert _positions(cut_spans(spans, start, end)) == expected


def _positions(spans: tuple[ContentSpan, ...]) -> dict[int, tuple[bytes, int]]:
    return {
        position: (span.digest, span.offset + position - span.start)
        for span in spans
        for position in range(span.start, span.end)
    }
