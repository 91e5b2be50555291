"""JSON shape: how much a parser would have to do, told without parsing.

A body of some megabytes is quickly parsed if it is text, and takes seconds of everybody's
time if it is a million empty lists. So what is outside of strings is counted first, by
array operations, in linear time::

    {"a": [1, 2, {"b": []}]}     depth 4, lists and objects 4, fields 2, commas 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Bytes looked at together.
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLimits:
    """What a body may hold; each of them at most.

    Attributes:
        max_depth: Levels of nesting.
        max_containers: Lists and objects.
        max_fields: Fields of all objects together.
        max_items: Commas: values in lists, and fields.
    """

    max_depth: int
    max_containers: int = 32_768
    max_fields: int = 32_768
    max_items: int = 262_144


def find_excess(body: bytes, limits: JsonLimits) -> str | None:
    """Return which limit JSON text exceeds, as a sentence; None if it exceeds none.

    Of what is no JSON it tells something or other, but always in linear time.
    """
    return find_total_excess([body], limits)


def find_total_excess(texts: Sequence[bytes], limits: JsonLimits) -> str | None:
    """Return which limit several JSON texts exceed together; depth is each one's own."""
    num_opens = sum(text.count(b"[") + text.count(b"{") for text in texts)
    if (
        num_opens <= min(limits.max_depth, limits.max_containers)
        and sum(text.count(b":") for text in texts) <= limits.max_fields
        and sum(text.count(b",") for text in texts) <= limits.max_items
    ):
        return None  # not even with those inside of strings
    shape = _Shape()
    for text in texts:
        _measure(text, shape)
    if shape.depth > limits.max_depth:
        return f"the body is nested deeper than {limits.max_depth} levels; flatten it"
    for count, limit, things in (
        (shape.num_containers, limits.max_containers, "lists and objects"),
        (shape.num_fields, limits.max_fields, "fields"),
        (shape.num_commas, limits.max_items, "values"),
    ):
        if count > limit:
            return f"the body has more than {limit} {things}; send less in one request"
    return None


@dataclass(slots=True)
class _Shape:
    depth: int = 0
    num_containers: int = 0
    num_fields: int = 0
    num_commas: int = 0


def _measure(body: bytes, shape: _Shape) -> None:
    """Add what is in one text."""
    # Without escapes every quote is the end of a string or its beginning.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    signs = np.frombuffer(plain, dtype=np.uint8)
    is_string, level = False, 0
    for start in range(0, len(signs), _PIECE):
        piece = signs[start : start + _PIECE]
        quotes = np.cumsum(piece == ord('"'), dtype=np.int32)
        # Signs inside of strings become something that is not counted.
        outside = np.where((quotes + is_string) % 2 == 0, piece, np.uint8(0))
        opens = (outside == ord("[")) | (outside == ord("{"))
        closes = (outside == ord("]")) | (outside == ord("}"))
        levels = level + np.cumsum(opens.astype(np.int32) - closes)
        shape.depth = max(shape.depth, int(levels.max()))
        shape.num_containers += int(np.count_nonzero(opens))
        shape.num_fields += int(np.count_nonzero(outside == ord(":")))
        shape.num_commas += int(np.count_nonzero(outside == ord(",")))
        is_string = bool((quotes[-1] + is_string) % 2)
        level = int(levels[-1])
