"""Configuration checks: what numbers and flags of a section may be."""

from __future__ import annotations

from typing import TypeGuard

from prefold.errors import ConfigError

#: Seconds that an entry may be kept unused, at most: a year.
MAX_TTL_S = 31_536_000.0

_MAX_SECONDS = 86_400.0


def check_whole(name: str, value: object, least: int, most: int) -> None:
    """Raise ``ConfigError`` unless it is a whole number in that range."""
    # A bool is an int to Python, and never meant as one here.
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(
            f"{name} must be a whole number from {least} to {most}, got {show(value)}"
        )


def check_seconds(name: str, value: object, *, least: float) -> None:
    """Raise ``ConfigError`` unless it is so many seconds, and at most a day."""
    # The comparison is false for what is not a number, too.
    if not is_number(value) or not least <= value <= _MAX_SECONDS:
        raise ConfigError(
            f"{name} must be a number of seconds from {least:g} to {_MAX_SECONDS:g}, "
            f"got {show(value)}"
        )


def check_ttl(value: object) -> None:
    """Raise ``ConfigError`` unless it is None, or seconds up to a year."""
    if value is None:
        return
    if not is_number(value) or not 0 < value <= MAX_TTL_S:
        raise ConfigError(
            f"ttl_s must be a number of seconds above 0 and at most {MAX_TTL_S:.0f}, a "
            f"year, got {show(value)}"
        )


def check_share(name: str, value: object, *, most: float = 1.0) -> None:
    """Raise ``ConfigError`` unless it is from 0 to ``most``."""
    if not is_number(value) or not 0 <= value <= most:
        raise ConfigError(f"{name} must be from 0 to {most:g}, got {show(value)}")


def check_flag(name: str, value: object) -> None:
    """Raise ``ConfigError`` unless it is true or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {show(value)}")


def is_number(value: object) -> TypeGuard[float]:
    """Tell a number from everything else, also from true and false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def show(value: object) -> str:
    """Return how a message repeats a value: a few characters of it."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "one far beyond"  # Python refuses to write very long ones out
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
