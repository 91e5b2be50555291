"""Image files: what they show identifies them, and hostile ones stay small."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from prefold.engine.image_limits import ImageLimits
from prefold.engine.images import DecodedImage, read_image, read_images
from prefold.errors import ConfigError, RequestError
from support.tiny_vision import make_pixels, make_png, to_png

LIMITS = ImageLimits(max_images=2, max_pixels=10_000)


def digest(file: bytes, *options: str) -> bytes:
    return read_image(file, LIMITS).digest(tuple(options))


def save(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return to_png(Image.fromarray(make_pixels(1, 8, 12)), exif=exif)


def test_everything_that_changes_what_is_seen_changes_the_digest() -> None:
    pixels = make_pixels(1, 8, 12)
    grey = make_pixels(2, 8, 12, channels=0)
    alpha = np.dstack((pixels, grey))
    indexed = []
    for palette in (list(range(256)) * 3, list(range(255, -1, -1)) * 3):
        picture = Image.frombytes("P", (12, 8), grey.tobytes())
        picture.putpalette(palette)
        indexed.append(picture)
    files = [
        to_png(Image.fromarray(pixels)),
        to_png(Image.fromarray(pixels.reshape(12, 8, 3))),
        to_png(Image.fromarray(grey)),
        to_png(Image.fromarray(alpha)),
        to_png(Image.fromarray(np.dstack((pixels, 255 - grey)))),
        *(to_png(picture) for picture in indexed),
        to_png(indexed[0], transparency=3),
        to_png(Image.fromarray(pixels), transparency=(1, 2, 3)),
        *(turned(orientation) for orientation in range(2, 9)),
    ]
    assert len({digest(file) for file in files}) == len(files)
    assert digest(files[0]) != digest(files[0], "other options")


def test_what_shows_the_same_pixels_has_the_same_digest() -> None:
    picture = Image.fromarray(make_pixels(1, 8, 12))
    files = [
        to_png(picture),
        to_png(picture, compress_level=0),
        save(picture, "WEBP", lossless=True, exact=True),
        turned(1),
        to_png(Image.fromarray(make_pixels(1, 8, 12))),
    ]
    assert len({digest(file) for file in files}) == 1


def test_a_picture_lies_as_its_file_says() -> None:
    upright = read_image(turned(6), LIMITS)
    assert upright.pixels.shape == (12, 8, 3)
    assert np.array_equal(upright.pixels, np.rot90(make_pixels(1, 8, 12), -1))


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"]
)
def test_every_mode_becomes_red_green_and_blue(mode: str) -> None:
    grey = Image.fromarray(make_pixels(1, 8, 12, channels=0))
    picture = grey.convert("I").convert(mode) if mode == "I;16" else grey.convert(mode)
    image = DecodedImage(picture=picture, pixels=np.array(picture))
    assert (image.as_rgb().mode, image.as_rgb().size) == ("RGB", (12, 8))


def test_what_is_clear_is_white() -> None:
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image = DecodedImage(picture=clear, pixels=np.array(clear))
    assert image.as_rgb().getpixel((0, 0)) == (255, 255, 255)


def chunk(kind: bytes, data: bytes) -> bytes:
    return (
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
    )


def png_header(width: int, height: int) -> bytes:
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        # Headers alone: nothing may be decoded before the size is checked.
        (png_header(2**31 - 1, 2**31 - 1) + chunk(b"IDAT", b""), "million pixels"),
        (png_header(101, 100) + chunk(b"IDAT", b""), "million pixels"),
        (png_header(10, 10) + chunk(b"IDAT", zlib.compress(bytes(3))), "cannot be read"),
        (png_header(0, 0), "cannot be read"),
        (
            png_header(8, 8) + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**26))),
            "cannot be read",
        ),
        (make_png(1)[:-30], "cannot be read"),
        (b"", "cannot be read"),
        (b"BM" + bytes(60), "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "cannot be read"),
        (b"II*\0" + bytes(40), "cannot be read"),
    ],
)
def test_hostile_files_are_one_sentence(file: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_image(file, LIMITS)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_animations_are_refused_and_stills_are_not(kind: str) -> None:
    frames = [Image.fromarray(make_pixels(seed)) for seed in (1, 2)]
    assert read_image(save(frames[0], kind), LIMITS).pixels.shape[:2] == (16, 16)
    moving = save(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(RequestError, match="without animation"):
        read_image(moving, LIMITS)


def test_too_many_are_refused_before_one_is_read() -> None:
    with pytest.raises(RequestError, match="may have 2 images, got 3"):
        read_images([b""] * 3, LIMITS)
    with pytest.raises(ConfigError):
        ImageLimits(max_images=0)
