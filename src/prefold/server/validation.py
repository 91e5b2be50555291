"""Validation: complaints about a request's body, each made into one sentence.

The sentence names the field and what it must be, never what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefold.server.errors import HttpError

#: What a name may look like to be repeated: a field's, not a text that is none.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

#: Tags that stand in a place behind an index, and are no part of the body.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})

_TYPES = {
    "string_type": "must be a text",
    "string_unicode": "must be Unicode text; it holds half of a surrogate pair",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of a usual size",
    "bool_parsing": "must be true or false",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "none_required": "must be null",
    "finite_number": "must be a finite number",
    "string_pattern_mismatch": "must be 1 to 64 letters, digits, '.', '_' and '-'",
    "union_tag_not_found": "needs a role: 'system', 'developer', 'user', 'assistant' or "
    "'tool'",
    "union_tag_invalid": "must have the role 'system', 'developer', 'user', 'assistant' or "
    "'tool'",
}

_Context = Mapping[str, Any]

#: Kinds of error whose sentence has a limit in it.
_LIMITS: dict[str, Callable[[_Context], str]] = {
    "greater_than_equal": lambda given: f"must be at least {given['ge']}",
    "greater_than": lambda given: f"must be above {given['gt']}",
    "less_than_equal": lambda given: f"must be at most {given['le']}",
    "less_than": lambda given: f"must be below {given['lt']}",
    "too_long": lambda given: f"must have at most {_count(given['max_length'], 'item')}",
    "too_short": lambda given: f"must have at least {_count(given['min_length'], 'item')}",
    "string_too_long": lambda given: (
        f"must have at most {_count(given['max_length'], 'character')}"
    ),
    "string_too_short": lambda given: (
        f"must have at least {_count(given['min_length'], 'character')}"
    ),
    "literal_error": lambda given: f"must be {given['expected']}",
}


def to_http_error(errors: Sequence[Mapping[str, Any]]) -> HttpError:
    """Return the answer to a body with these errors, as pydantic lists them."""
    error = errors[0]
    kind = str(error["type"])
    context = error.get("ctx") or {}
    if kind == "json_invalid":
        # The reason is one of a few fixed texts.
        return HttpError(
            400, f"the body is not valid JSON: {context['error']} (byte {error['loc'][-1]})"
        )
    path = path_of(error["loc"])
    if not path:
        # About a field, but a name that there is not has no place.
        is_named = kind == "unknown_field"
        what = _complaint(error) if kind == "explained" else "must be a JSON object"
        message = str(error["msg"]) if is_named else f"the body {what}"
        return HttpError(
            400,
            message,
            param=context.get("name") if is_named else None,
            code="unknown_parameter" if is_named else None,
        )
    if kind == "missing":
        return HttpError(
            400, f"{path} is missing", param=path, code="missing_required_parameter"
        )
    if kind == "extra_forbidden":
        return HttpError(
            400,
            f"{path} is not a field that this server knows; leave it out",
            param=path,
            code="unknown_parameter",
        )
    return HttpError(400, f"{path} {_complaint(error)}", param=path, code="invalid_value")


def path_of(location: Sequence[str | int]) -> str:
    """Return where in a body something is, such as ``messages[0].content``.

    A name that does not look like one of a field is not repeated.
    """
    path = ""
    is_behind_index = False
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (is_behind_index and part in _ROLES):
            name = part if _NAME.fullmatch(part) else "(a name that is not shown)"
            path += f".{name}" if path else name
        is_behind_index = isinstance(part, int)
    return path


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _complaint(error: Mapping[str, Any]) -> str:
    kind = str(error["type"])
    if kind == "explained":
        return str(error["msg"])
    if kind in _LIMITS:
        return _LIMITS[kind](error.get("ctx") or {})
    return _TYPES.get(kind, "is not valid; see /openapi.json for what it may be")
