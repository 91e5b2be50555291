"""JSON order: whether two texts part inside one JSON value that is only reordered.

Tool lists and settings are often written from a mapping whose order changes from one
process to the next. The values are equal; the prompts are not. Python's own way to write
them, with single quotes, is read as well.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Literal, TypeAlias

Reordered: TypeAlias = Literal["keys", "list", "tools"]

#: How far back an opening bracket is looked for, and how many are tried.
_MAX_CHARS = 2**16
_MAX_BRACKETS = 64
#: Of a value in Python's way; reading those costs more.
_MAX_LITERAL = 2**14

_DECODER = json.JSONDecoder()
_CLOSING = {"{": "}", "[": "]", "(": ")"}

_TOOL_KEYS = frozenset({"parameters", "input_schema", "arguments", "inputSchema"})


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
        found = _compare(ours, theirs)
        if found is not None or _canonical(ours) == _canonical(theirs):
            return found
    return None


def _compare(ours: object, theirs: object) -> Reordered | None:
    if _canonical(ours) == _canonical(theirs):
        # Equal with their keys in order; written as they stand, only keys can differ.
        return "keys" if _written(ours) != _written(theirs) else None
    if isinstance(ours, list) and isinstance(theirs, list) and _same_entries(ours, theirs):
        return "tools" if all(map(_is_tool, ours)) else "list"
    return None


def _bracket_before(text: str, end: int, begin: int) -> int:
    begin = max(begin, 0)
    return max(text.rfind("{", begin, end), text.rfind("[", begin, end))


def _read(text: str, start: int, place: int) -> object | None:
    """Read the value at ``start`` if it reaches over ``place``."""
    try:
        value, end = _DECODER.raw_decode(text[start : start + _MAX_CHARS])
    except (ValueError, RecursionError):
        return _read_literal(text, start, place)
    return value if isinstance(value, list | dict) and start + end > place else None


def _read_literal(text: str, start: int, place: int) -> object | None:
    piece = _balanced(text[start : start + _MAX_LITERAL])
    if piece is None or start + len(piece) <= place or "'" not in piece:
        return None
    try:
        value = ast.literal_eval(piece)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    if isinstance(value, set | frozenset):
        # In the order of the text: that is what differs.
        return [ast.unparse(each) for each in _elements(piece)]
    return value if isinstance(value, list | dict) else None


def _elements(piece: str) -> Sequence[ast.expr]:
    body = ast.parse(piece, mode="eval").body
    return body.elts if isinstance(body, ast.Set) else []


def _balanced(text: str) -> str | None:
    """Return the text up to the bracket that closes the first one."""
    closing: list[str] = []
    quote = ""
    is_escaped = False
    for index, letter in enumerate(text):
        if quote:
            if is_escaped:
                is_escaped = False
            elif letter == "\\":
                is_escaped = True
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSING:
            closing.append(_CLOSING[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
            if not closing:
                return text[: index + 1]
    return None


def _same_entries(ours: list[object], theirs: list[object]) -> bool:
    return sorted(map(_canonical, ours)) == sorted(map(_canonical, theirs))


def _is_tool(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    inner = entry.get("function", entry)
    return isinstance(inner, dict) and "name" in inner and bool(_TOOL_KEYS & inner.keys())


def _canonical(value: object) -> str:
    # As text, because to Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True, default=repr)


def _written(value: object) -> str:
    return json.dumps(value, default=repr)
