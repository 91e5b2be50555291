"""Miss tables: why requests missed, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

#: Of the text on each side of the place where two prompts part, in characters.
_SHOWN_TEXT = 60

_Document = Mapping[str, object]


def miss_rows(document: _Document) -> Sequence[_Document]:
    """Return the last misses as rows of a table."""
    return [
        {
            "at": _time(row.get("at")),
            "request": row.get("request_id"),
            "tenant": row.get("tenant"),
            "prompt_tokens": row.get("prompt_tokens"),
            "hit_tokens": row.get("hit_tokens"),
            "why": _why(row),
        }
        for row in _objects(document.get("data"))
    ]


def explanation_lines(document: _Document) -> list[str]:
    """Return the explanation of one request as lines."""
    lines = []
    for prompt in _objects(document.get("prompts")):
        lines.append(
            f"{prompt.get('hit_tokens')} of {prompt.get('prompt_tokens')} prompt tokens "
            f"hit. {_why(prompt)}"
        )
        if prompt.get("lost_at") is not None:
            lines.append(f"That was at {_time(prompt.get('lost_at'))}.")
        lines += _earlier(prompt.get("earlier"))
        if isinstance(prompt.get("advice"), str):
            lines.append(str(prompt["advice"]))
    return lines


def _earlier(earlier: object) -> list[str]:
    if not isinstance(earlier, Mapping):
        return []
    agreement = f"Up to token {earlier.get('common_tokens')} it agrees with request"
    lines = [f"{agreement} {earlier.get('request_id')} of {_time(earlier.get('at'))}."]
    text = earlier.get("text")
    if isinstance(text, Mapping):
        before = str(text.get("before"))[-_SHOWN_TEXT:]
        for name in ("earlier", "later"):
            after = str(text.get(name))[:_SHOWN_TEXT]
            lines.append(f"{name:>8}: {before!r} then {after!r}")
    return lines


def _why(row: _Document) -> str:
    reason = row.get("reason")
    if not isinstance(reason, Mapping):
        return "-"
    culprit = reason.get("culprit")
    if not isinstance(culprit, Mapping):
        return str(reason.get("sentence"))
    detail = str(culprit.get("detail"))
    verb = "differ" if detail.endswith("s") else "differs"
    return f"{reason.get('sentence')} {detail[:1].upper()}{detail[1:]} {verb}."


def _time(seconds: object) -> str:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return "-"
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _objects(value: object) -> Sequence[_Document]:
    return (
        [it for it in value if isinstance(it, Mapping)] if isinstance(value, list) else []
    )
