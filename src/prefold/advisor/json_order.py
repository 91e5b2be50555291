"""JSON order: whether two texts part inside one JSON value that is only reordered.

Tool lists and settings are often written from a mapping whose order changes from one
process to the next. The values are equal; the prompts are not.
"""

from __future__ import annotations

import json
from typing import Literal, TypeAlias

Reordered: TypeAlias = Literal["keys", "list"]

#: How far back an opening bracket is looked for, and how many are tried.
_MAX_CHARS = 2**16
_MAX_BRACKETS = 64

_DECODER = json.JSONDecoder()


def find_reordered(earlier: str, later: str, place: int) -> Reordered | None:
    """Return what is in another order around ``place``, where the texts part.

    ``None`` if the texts do not part inside JSON, or if more than the order differs.
    """
    position = place
    for _ in range(_MAX_BRACKETS):
        position = _bracket_before(earlier, position, place - _MAX_CHARS)
        if position < 0:
            return None
        ours, theirs = _read(earlier, position, place), _read(later, position, place)
        if ours is None or theirs is None:
            continue
        if _canonical(ours) == _canonical(theirs):
            # Equal with their keys in order; written as they stand, only keys can differ.
            return "keys" if json.dumps(ours) != json.dumps(theirs) else None
        if (
            isinstance(ours, list)
            and isinstance(theirs, list)
            and _same_entries(ours, theirs)
        ):
            return "list"
    return None


def _bracket_before(text: str, end: int, begin: int) -> int:
    begin = max(begin, 0)
    return max(text.rfind("{", begin, end), text.rfind("[", begin, end))


def _read(text: str, start: int, place: int) -> list[object] | dict[str, object] | None:
    """Read the value at ``start`` if it reaches over ``place``."""
    try:
        value, end = _DECODER.raw_decode(text[start : start + _MAX_CHARS])
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list | dict) and start + end > place else None


def _same_entries(ours: list[object], theirs: list[object]) -> bool:
    return sorted(map(_canonical, ours)) == sorted(map(_canonical, theirs))


def _canonical(value: object) -> str:
    # As text, because to Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True)
