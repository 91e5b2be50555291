"""Line order: whether two texts part where the same lines only stand in another order.

Tools and settings are often written one to a line, or one to a paragraph, from a set or a
mapping whose order changes from one process to the next.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias

ReorderedLines: TypeAlias = Literal["tools", "lines"]

#: Lines, or paragraphs, that are looked at after the first that differs.
_MAX_LINES = 400
_MAX_CHARS = 2**16
#: Shorter lines stand anywhere.
_MIN_CHARS = 8

_TOOL = re.compile(
    r"""["']?(?:function|functions|tool|tools|parameters|input_schema|arguments)["']?\s*[:=(]|"""
    r"\(_?: ?\{|=> any|<tool|<function|\bdef \w+\(|\btype \w+ = \("
)


def find_reordered_lines(earlier: str, later: str, place: int) -> ReorderedLines | None:
    """Return what is in another order from ``place`` on, where the texts part."""
    for mark in ("\n", "\n\n"):
        begin = earlier.rfind(mark, 0, place)
        begin = 0 if begin < 0 else begin + len(mark)
        found = _permuted(
            *(_pieces(text[begin : begin + _MAX_CHARS], mark) for text in (earlier, later))
        )
        if found is not None:
            text = "\n".join(found)
            return "tools" if _TOOL.search(text) else "lines"
    return None


def _pieces(text: str, mark: str) -> list[str]:
    return [piece for piece in text.split(mark) if piece.strip()]


def _permuted(ours: Sequence[str], theirs: Sequence[str]) -> Sequence[str] | None:
    """Return the fewest leading lines that are the same in another order."""
    surplus: Counter[str] = Counter()
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if number >= _MAX_LINES:
            return None
        if number == 0 and _bare(one) == _bare(other):
            return None  # what differs is around the words
        # The last of them may stand before a comma or the end.
        for line, sign in ((_bare(one), 1), (_bare(other), -1)):
            surplus[line] += sign
            if surplus[line] == 0:
                del surplus[line]
        if number and not surplus:
            found = ours[: number + 1]
            is_long = all(len(line.strip()) >= _MIN_CHARS for line in found if line.strip())
            return found if is_long else None
    return None


def _bare(line: str) -> str:
    return re.sub(r"^\s*(?:\d+[.)]|[-*•])\s*", "", line).strip().rstrip(",;")
