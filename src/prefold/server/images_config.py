"""Image configuration: the section ``[images]`` of one ``prefold.toml``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from prefold.engine.image_limits import ImageLimits
from prefold.errors import ConfigError

_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")
_MAX_COUNT = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesConfig:
    """Section ``[images]``: what a request may send to be looked at, and from where.

    Attributes:
        max_images: Images of one request.
        max_pixels: Width times height of each, read from its header before it is decoded.
        max_media_body_bytes: A body of so many bytes, or more, is refused where the model
            takes images.
        remote_hosts: Names of the hosts that images may be fetched from; none by default,
            and then images by URL are refused.
        fetch_timeout_s: Seconds that fetching one image may take.
        max_fetched_bytes: Bytes of one fetched image, at most.
        max_uploads: Files that a tenant may have uploaded at the same time.
        max_upload_bytes: Of all of them.
        upload_ttl_s: Seconds after which an uploaded file is forgotten.
    """

    max_images: int = 8
    max_pixels: int = 20_000_000
    max_media_body_bytes: int = 16 * 2**20
    remote_hosts: tuple[str, ...] = ()
    fetch_timeout_s: float = 10.0
    max_fetched_bytes: int = 10_000_000
    max_uploads: int = 64
    max_upload_bytes: int = 64 * 2**20
    upload_ttl_s: float = 3600.0

    def __post_init__(self) -> None:
        self.limits.max_images  # noqa: B018 -- checks the two
        for name in (
            "max_media_body_bytes",
            "max_fetched_bytes",
            "max_uploads",
            "max_upload_bytes",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number")
            if not 1 <= value <= _MAX_COUNT:
                raise ConfigError(f"{name} must be from 1 to {_MAX_COUNT}, got {value}")
        for name, most in (("fetch_timeout_s", 60.0), ("upload_ttl_s", 86_400.0)):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not 0 < seconds <= most:
                raise ConfigError(
                    f"{name} must be a number of seconds above 0 and at most {most:g}"
                )
        for host in self.remote_hosts:
            if not _HOST.fullmatch(host):
                raise ConfigError(
                    "remote_hosts must be names of hosts in small letters, such as "
                    "'images.example.org', without a scheme or a port"
                )

    @property
    def limits(self) -> ImageLimits:
        """What the engine holds images against."""
        return ImageLimits(max_images=self.max_images, max_pixels=self.max_pixels)
