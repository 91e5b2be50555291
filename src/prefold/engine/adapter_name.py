"""Adapter names: what requests ask for. Free of torch, for configurations and clients."""

from __future__ import annotations

import re

from prefold.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


def check_adapter_name(name: object) -> None:
    """Raise ``ConfigError`` if no adapter can have that name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            "an adapter's name is 1 to 128 letters, digits, '.', '_', '/' and '-', "
            "beginning with a letter or digit"
        )
