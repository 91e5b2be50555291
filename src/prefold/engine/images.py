"""Images: files from anybody in, pixels out, or one constant sentence.

What a file is, is read from its first bytes, never taken from a name or a type that came
with it. Its size is read from its header and checked before a pixel is decoded, so that
a small file cannot become gigabytes. The text of an error never comes from a decoder: it
could quote memory.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageOps

from prefold.engine.image_limits import ImageLimits
from prefold.errors import RequestError
from prefold.identity.content import image_digest
from prefold.identity.encoding import Field

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")

_UNREADABLE = (
    "an image cannot be read: send a whole PNG, JPEG, WebP or GIF file, without animation"
)

#: What decoders raise for files that are damaged, cut off, or made to harm.
_FAULTS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    Warning,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

#: Turns an image so that it is upright, or mirrors it.
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedImage:
    """An image as it is to be seen.

    Attributes:
        picture: Upright; in the mode that the file has.
        pixels: The same, as an array.
    """

    picture: Image.Image = field(repr=False)
    pixels: npt.NDArray[np.generic] = field(repr=False)

    def digest(self, options: tuple[Field, ...]) -> bytes:
        """Return what identifies it; ``options`` are those of what is made of it."""
        palette = self.picture.getpalette("RGBA") if self.picture.mode == "P" else None
        # What stands for nothing: a colour, or the alpha of each entry of the palette.
        clear = self.picture.info.get("transparency")
        return image_digest(
            self.pixels,
            mode=self.picture.mode,
            palette=None if palette is None else bytes(palette),
            options=(PIL.__version__, _plain(clear), options),
        )

    def as_rgb(self) -> Image.Image:
        """Return it in red, green and blue, what is clear in it over white."""
        picture = self.picture
        if picture.mode == "RGB" and "transparency" not in picture.info:
            return picture
        if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
            clear = picture.convert("RGBA")
            ground = Image.new("RGBA", clear.size, (255, 255, 255, 255))
            return Image.alpha_composite(ground, clear).convert("RGB")
        if picture.mode.startswith("I") or picture.mode == "F":
            # 16 bits of grey; a plain conversion would cut off what is above 255.
            grey = np.asarray(picture).astype(np.float64) / 257.0
            return Image.fromarray(np.clip(grey, 0, 255).astype(np.uint8)).convert("RGB")
        return picture.convert("RGB")


def read_images(files: Sequence[bytes], limits: ImageLimits) -> list[DecodedImage]:
    """Return the images of one request. O(their pixels).

    Raises:
        RequestError: They are too many, too large, or one is no image.
    """
    check_number(len(files), limits)
    return [read_image(file, limits) for file in files]


def check_number(number: int, limits: ImageLimits) -> None:
    """Refuse more images than a request may have.

    Raises:
        RequestError: Naming the limit.
    """
    if number > limits.max_images:
        raise RequestError(
            f"a request may have {limits.max_images} images, got {number}; send fewer"
        )


def read_image(file: bytes, limits: ImageLimits) -> DecodedImage:
    """Return one image.

    Raises:
        RequestError: It has more pixels than it may have, or is no image of the kinds
            that are known, whole and without animation.
    """
    try:
        picture = Image.open(io.BytesIO(file), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(limits) from error
    except _FAULTS as error:
        raise RequestError(_UNREADABLE) from error
    width, height = picture.size
    if width * height > limits.max_pixels:
        raise _too_large(limits)
    try:
        _check_still(picture)
        picture.load()
        upright = _turn(picture)
        return DecodedImage(picture=upright, pixels=np.array(upright))
    except RequestError:
        raise
    except _FAULTS as error:
        raise RequestError(_UNREADABLE) from error


def _too_large(limits: ImageLimits) -> RequestError:
    return RequestError(
        f"an image may have {limits.max_pixels / 1e6:g} million pixels; send it smaller"
    )


def _check_still(picture: Image.Image) -> None:
    if getattr(picture, "n_frames", 1) != 1:
        raise RequestError(_UNREADABLE)


def _turn(picture: Image.Image) -> Image.Image:
    if picture.getexif().get(_ORIENTATION_TAG, 1) == 1:
        return picture
    info = picture.info.get("transparency")
    turned = ImageOps.exif_transpose(picture)
    if info is not None:
        turned.info.setdefault("transparency", info)
    return turned


def _plain(value: object) -> Field:
    """Return a mark of transparency as a field: a number, bytes, or several numbers."""
    if isinstance(value, int | bytes) or value is None:
        return value
    return repr(value)
