"""Image limits: how many images a request may have, and how large."""

from __future__ import annotations

from dataclasses import dataclass

from prefold.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Limits of one request's images.

    Attributes:
        max_images: How many.
        max_pixels: Width times height of each, read from its header.

    Raises:
        ConfigError: A limit is below 1.
    """

    max_images: int = 8
    max_pixels: int = 20_000_000

    def __post_init__(self) -> None:
        for name in ("max_images", "max_pixels"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{name} must be a whole number of at least 1, got {value!r}"
                )
