"""Request log: bodies sent to an OpenAI-compatible server, as block ids.

A line is a body (``messages``, or ``prompt``), or an object that has one as ``body`` or
``request``. Beside it, or in it, may stand when it came (``timestamp``, ``time``,
``created_at`` or ``created``: seconds, milliseconds or ISO 8601) and ``usage``, which may
also be part of a ``response``.

What is exact: a prompt given as token ids. What is *estimated*, because a log has neither
tokenizer nor template: a text counts as a token per 4 bytes of UTF-8 and is cut into
blocks of that many bytes, ``messages`` and ``tools`` as JSON with their keys in order, so
where blocks end is off, and a little is counted that no template writes. Equal beginnings
still give equal blocks, which is what hits are made of. ``usage`` says how long the prompt
really was; blocks beyond that are dropped. Requests without a time come a second apart.

Ids are made here, a new one for every block after another prefix or for another model.
Texts are kept as digests only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from prefold.advisor.block_maker import BlockMaker
from prefold.advisor.trace_row import (
    RecordedRequest,
    Row,
    RowError,
    read_count,
    read_label,
    read_time,
)

#: A usual ratio for English text and code under a large vocabulary.
BYTES_PER_TOKEN = 4

_BYTES_PER_ID = 8
_WRAPPERS = ("body", "request")
_TIMES = ("timestamp", "time", "created_at", "created")
#: Seconds of the year 5138; what is above counts milliseconds.
_MAX_SECONDS = 1e11


def holds_body(row: Row) -> bool:
    """Whether a row has a request body, or is one."""
    return _has_prompt(row) or any(
        isinstance(body := row.get(name), dict) and _has_prompt(body) for name in _WRAPPERS
    )


class LogReader:
    """Reads rows of one log, in order; remembers a digest for every block seen."""

    __slots__ = ("_maker",)

    def __init__(self, block_size: int) -> None:
        self._maker = BlockMaker(block_size)

    def __call__(self, row: Row) -> Iterator[RecordedRequest]:
        body = find_body(row)
        model = read_label(body, "model") or ""
        usage = find_usage(row)
        arrival_s = find_time(row, body)
        prompts = _find_prompts(body)
        for content, bytes_per_token in prompts:
            # Of several prompts in one body, usage is the sum.
            is_told = usage is not None and "prompt_tokens" in usage and len(prompts) == 1
            yield RecordedRequest(
                arrival_s=arrival_s,
                num_prompt_tokens=read_count(usage or {}, "prompt_tokens")
                if is_told
                else -(-len(content) // bytes_per_token),
                num_output_tokens=read_count(usage or {}, "completion_tokens", 0),
                runs=self._maker.runs(model, content, bytes_per_token),
                session=label_in(row, body, "session"),
                tenant=label_in(row, body, "tenant"),
            )


def _has_prompt(body: Row) -> bool:
    return "messages" in body or "prompt" in body


def find_body(row: Row) -> Row:
    """Return the request body that a row has, or the row."""
    if _has_prompt(row):
        return row
    for name in _WRAPPERS:
        body = row.get(name)
        if isinstance(body, dict):
            return body
    return row


def _find_prompts(body: Row) -> list[tuple[bytes, int]]:
    """Return each prompt as bytes, and how many of them are a token."""
    if "messages" in body:
        messages = body["messages"]
        if not isinstance(messages, list) or not messages:
            raise RowError("'messages' is no list of messages")
        # Templates write the tools in front.
        parts = [*_as_list(body.get("tools")), *messages]
        return [(b"\n".join(map(_canonical, parts)), BYTES_PER_TOKEN)]
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return [_prompt_content(each) for each in prompt]
    return [_prompt_content(prompt)]


def _prompt_content(prompt: object) -> tuple[bytes, int]:
    if isinstance(prompt, str):
        return prompt.encode(errors="surrogatepass"), BYTES_PER_TOKEN
    if isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        try:
            return np.array(prompt, dtype=np.int64).tobytes(), _BYTES_PER_ID
        except OverflowError as error:
            raise RowError("'prompt' has an id that no vocabulary has") from error
    raise RowError("there are no 'messages', and 'prompt' is neither text nor token ids")


def _canonical(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode(errors="surrogatepass")


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def find_usage(row: Row) -> Row | None:
    """Return what a row says of tokens, or None."""
    places: list[object] = [row, row.get("response")]
    if isinstance(places[1], dict):
        places.append(places[1].get("body"))
    for place in places:
        if isinstance(place, dict) and isinstance(usage := place.get("usage"), dict):
            return usage
    return None


def find_time(row: Row, body: Row) -> float | None:
    """Return when a request came, in seconds, or None if the row does not say."""
    for place in (row, body):
        for name in _TIMES:
            if place.get(name) is not None:
                return _seconds(place, name)
    return None


def _seconds(row: Row, name: str) -> float:
    value = row[name]
    if not isinstance(value, str):
        seconds = read_time(row, name)
        return seconds / 1000 if seconds > _MAX_SECONDS else seconds
    try:
        at = datetime.fromisoformat(value)
        # Without a zone every machine would take it for another time.
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise RowError(f"{name!r} is no time") from error


def label_in(row: Row, body: Row, name: str) -> str | None:
    """Return a label that the row has, or its body, or None."""
    label = read_label(row, name)
    return read_label(body, name) if label is None else label
