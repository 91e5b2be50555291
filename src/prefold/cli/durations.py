"""Durations as they are typed: a number, and what it counts."""

from __future__ import annotations

import re

from prefold.errors import InvalidInputError

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_seconds(option: str, text: str | None) -> float | None:
    """Return the seconds that an option says; None if it was not given.

    Raises:
        InvalidInputError: It is no duration.
    """
    if text is None:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InvalidInputError(
            f"{option} must be a number with s, m, h, d or w, such as 12h, "
            f"got {text[:40]!r}"
        )
    return float(found[1]) * _SECONDS[found[2]]
