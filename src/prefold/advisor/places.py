"""Places: values that stand at one place of two texts, and what is around them."""

from __future__ import annotations

import re
from typing import TypeAlias

#: No value that is looked for is longer, so no search needs to begin earlier.
_MAX_VALUE_CHARS = 128

#: Of what follows a value, in characters: that much is compared, and has to agree.
_FRAME_CHARS = 160
_SAME_FRAME = 48

#: What changes from request to request, as a rule, has a digit in it.
_CHANGING = re.compile(r"\w*\d\w*")

Pair: TypeAlias = tuple[re.Match[str], re.Match[str]]


def common_length(earlier: str, later: str) -> int:
    """Count the leading characters that agree."""
    low, high = 0, min(len(earlier), len(later))
    # Halving compares long slices at once; a loop over characters would not.
    while low < high:
        middle = (low + high + 1) // 2
        if earlier[low:middle] == later[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def pair_at(pattern: re.Pattern[str], earlier: str, later: str, place: int) -> Pair | None:
    """Return the two different values that reach over ``place`` from one start."""
    for ours in _matches(pattern, earlier, place):
        for theirs in _matches(pattern, later, place):
            if ours.start() == theirs.start() and ours[0] != theirs[0]:
                return ours, theirs
    return None


def _matches(pattern: re.Pattern[str], text: str, place: int) -> list[re.Match[str]]:
    begin, end = max(place - _MAX_VALUE_CHARS, 0), place + _MAX_VALUE_CHARS
    return [
        match
        for match in pattern.finditer(text, begin, min(end, len(text)))
        # A longer number goes on where the shorter one ends, so its end counts.
        if match.start() <= place <= match.end()
    ]


def first_part(pair: Pair, names: dict[str, str], otherwise: str) -> str:
    """Name the first group, in the order of the text, that differs."""
    ours, theirs = (match.groupdict() for match in pair)
    for group in ours:
        if ours[group] != theirs[group]:
            return names.get(group, otherwise)
    return otherwise


def before(pair: Pair, num_chars: int = 40) -> str:
    """Return what stands before both values, on their line."""
    match = pair[0]
    start = match.start()
    return match.string[max(start - num_chars, 0) : start].rpartition("\n")[2]


def after(match: re.Match[str], num_chars: int = _FRAME_CHARS) -> str:
    """Return what stands after a value."""
    return match.string[match.end() : match.end() + num_chars]


def is_framed(pair: Pair) -> bool:
    """Whether both values stand in one frame: what follows is the same, or nothing is.

    Other values that change, as far as they have digits, count as the same.
    """
    ours, theirs = (_CHANGING.sub("0", after(match)) for match in pair)
    length = common_length(ours, theirs)
    return length >= _SAME_FRAME or length == len(ours) == len(theirs)
