"""Breakpoints: the part of a prompt that ends the prefix it shares with an earlier one.

Both texts agree up to a character; what stands there is looked at in both::

    earlier   ... The time is 09:41:07. You answer ...
    later     ... The time is 09:41:12. You answer ...
                                    ^ a clock in both, and its seconds differ

Only what both texts have at that place counts, so a prompt that merely mentions a time
somewhere is not blamed on it. Which token the place falls into is the caller's to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

from prefold.advisor.json_order import find_reordered


class BreakKind(Enum):
    """What differs."""

    CLOCK = "clock"
    DATE = "date"
    UUID = "uuid"
    RANDOM_ID = "random_id"
    COUNTER = "counter"
    REORDERED_KEYS = "reordered_keys"
    REORDERED_LIST = "reordered_list"
    WHITE_SPACE = "white_space"
    #: A line was replaced; what follows it is the same.
    TEMPLATE = "template"
    #: The same text, cut into other tokens.
    TOKENS = "tokens"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    """Why two prompts part.

    Attributes:
        detail: What differs, as a plural subject: "the clock's seconds". Never part of
            the prompt's own text.
        at_token: Leading tokens that agree, so the position of the first that does not.
    """

    kind: BreakKind
    detail: str
    at_token: int

    def describe(self) -> str:
        """Return the finding as a sentence without its full stop."""
        verb = "differ" if self.detail.endswith("s") else "differs"
        return f"{self.detail} {verb} at token {self.at_token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """A token and the characters that it stands for."""

    token_id: int
    start: int
    end: int


Tokenize: TypeAlias = Callable[[str], Sequence[TokenSpan]]


def find_breakpoint(earlier: str, later: str, tokenize: Tokenize) -> Breakpoint | None:
    """Compare two prompts; ``None`` if ``later`` only goes on where ``earlier`` ends.

    Args:
        earlier: What is cached.
        later: What was asked.
        tokenize: Cuts both in the same way as whoever served them.
    """
    pairs = zip(tokenize(earlier), tokenize(later), strict=False)
    for at_token, (ours, theirs) in enumerate(pairs):
        if ours.token_id != theirs.token_id:
            return explain_difference(earlier, later, at_token=at_token)
    return None


def explain_difference(earlier: str, later: str, *, at_token: int) -> Breakpoint:
    """Name what stands where the texts part.

    Args:
        earlier: The text of what is cached, at least around the place.
        later: The text of what was asked, beginning at the same character.
        at_token: Leading tokens of both prompts that agree.
    """
    place = _common_length(earlier, later)
    if place == len(earlier) == len(later):
        kind, detail = BreakKind.TOKENS, "the cut into tokens"
    else:
        kind, detail = _name(earlier, later, place)
    return Breakpoint(kind=kind, detail=detail, at_token=at_token)


def _name(earlier: str, later: str, place: int) -> tuple[BreakKind, str]:
    reordered = find_reordered(earlier, later, place)
    if reordered is not None:
        is_list = reordered == "list"
        kind = BreakKind.REORDERED_LIST if is_list else BreakKind.REORDERED_KEYS
        return kind, "the order of a JSON list" if is_list else "the order of JSON keys"
    for find in _FINDERS:
        found = find(earlier, later, place)
        if found is not None:
            return found
    return BreakKind.TEXT, "the text"


Finding: TypeAlias = tuple[BreakKind, str] | None


# -- values that change from request to request --------------------------------------

_UUID = re.compile(
    r"(?<![0-9A-Za-z])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(?![0-9A-Za-z])",
    re.ASCII | re.IGNORECASE,
)

_CLOCK = re.compile(
    r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})"
    r"(?::(?P<seconds>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?(?![\d:])"
    r"(?:[ \u202f]?(?P<half>[ap]\.?m)\b)?",
    re.ASCII | re.IGNORECASE,
)
_CLOCK_PARTS = {
    "hour": "the clock's hour",
    "half": "the clock's half of the day",
    "minute": "the clock's minute",
    "seconds": "the clock's seconds",
    "fraction": "the clock's fractions of a second",
}

_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|"
    r"aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DATES = tuple(
    re.compile(rf"(?<![0-9A-Za-z]){pattern}(?!\d)", re.ASCII | re.IGNORECASE)
    for pattern in (
        r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
        # Day and month change places from country to country.
        r"(?P<either>\d{1,2})(?P<sep>[-/.])(?P<other>\d{1,2})(?P=sep)(?P<year>\d{4}|\d{2})",
        rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th)? {_MONTH},? (?P<year>\d{{4}})",
        rf"{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
    )
)
_DATE_PARTS = {
    "year": "the date's year",
    "month": "the date's month",
    "day": "the date's day",
}
_WEEKDAY = re.compile(
    r"(?<![A-Za-z])(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
    r"(?![A-Za-z])",
    re.ASCII | re.IGNORECASE,
)

_WORD = re.compile(r"[0-9A-Za-z_]+(?:-[0-9A-Za-z_]+)*", re.ASCII)
_NUMBER = re.compile(r"(?<![0-9A-Za-z_])\d+(?![0-9A-Za-z_])", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{8,}", re.ASCII | re.IGNORECASE)

_MIN_HEX = 8
_MIN_MIXED = 12
#: Numbers of more digits are nobody's count.
_MAX_COUNTER_DIGITS = 9
#: Ten digits of seconds or thirteen of milliseconds, from 2001 to 2033.
_TIME_STAMP = re.compile(r"1\d{9}(?:\d{3})?", re.ASCII)


def _find_uuid(earlier: str, later: str, place: int) -> Finding:
    pair = _pair(_UUID, earlier, later, place)
    return None if pair is None else (BreakKind.UUID, "the UUID")


def _find_clock(earlier: str, later: str, place: int) -> Finding:
    pair = _pair(_CLOCK, earlier, later, place)
    return (
        None if pair is None else (BreakKind.CLOCK, _part(pair, _CLOCK_PARTS, "the clock"))
    )


def _find_date(earlier: str, later: str, place: int) -> Finding:
    for pattern in _DATES:
        pair = _pair(pattern, earlier, later, place)
        if pair is not None:
            return BreakKind.DATE, _part(pair, _DATE_PARTS, "the date")
    if _pair(_WEEKDAY, earlier, later, place) is not None:
        return BreakKind.DATE, "the date's weekday"
    return None


def _find_number(earlier: str, later: str, place: int) -> Finding:
    pair = _pair(_NUMBER, earlier, later, place)
    if pair is None:
        return None
    texts = [match[0] for match in pair]
    if all(_TIME_STAMP.fullmatch(text) for text in texts):
        return BreakKind.CLOCK, "the time stamp"
    if any(len(text) > _MAX_COUNTER_DIGITS for text in texts):
        return BreakKind.RANDOM_ID, "the random id"
    return BreakKind.COUNTER, "the counter"


def _find_random_id(earlier: str, later: str, place: int) -> Finding:
    pair = _pair(_WORD, earlier, later, place)
    if pair is None or not all(_looks_random(match[0]) for match in pair):
        return None
    return BreakKind.RANDOM_ID, "the random id"


def _looks_random(word: str) -> bool:
    """Whether it has letters and digits in no order that a name would have."""
    # The longest piece, so that a prefix as in "req-7f3c9a52" does not hide the rest.
    piece = max(re.split("[-_]", word), key=len)
    num_digits = sum(letter.isdigit() for letter in piece)
    if num_digits == 0 or num_digits == len(piece):
        return False
    if len(piece) >= _MIN_HEX and _HEX.fullmatch(piece):
        return True
    # "chapter12" is letters, then digits; an id changes between them often.
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(piece))
    return len(piece) >= _MIN_MIXED and changes >= 3


# -- the text itself -------------------------------------------------------------------

#: Characters that have to agree after a difference for it to count as a local one.
_SAME_AGAIN = 32


def _find_white_space(earlier: str, later: str, place: int) -> Finding:
    ends = [_skip_white_space(text, place) for text in (earlier, later)]
    if ends == [place, place]:
        return None
    rest = [
        text[end : end + _SAME_AGAIN]
        for text, end in zip((earlier, later), ends, strict=True)
    ]
    return (BreakKind.WHITE_SPACE, "the white space") if rest[0] == rest[1] else None


def _skip_white_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _find_template(earlier: str, later: str, place: int) -> Finding:
    our_rest, their_rest = (text[place:].partition("\n")[2] for text in (earlier, later))
    length = _common_length(our_rest, their_rest)
    # The rest may be short, but then all of it agrees.
    is_same = length >= _SAME_AGAIN or (0 < length == len(our_rest) == len(their_rest))
    return (BreakKind.TEMPLATE, "the template") if is_same else None


#: In this order: the narrowest first.
_FINDERS: tuple[Callable[[str, str, int], Finding], ...] = (
    _find_uuid,
    _find_date,
    _find_clock,
    _find_number,
    _find_random_id,
    _find_white_space,
    _find_template,
)


# -- places --------------------------------------------------------------------------------

#: No value that is looked for is longer, so no search needs to begin earlier.
_MAX_VALUE_CHARS = 128

Pair: TypeAlias = tuple[re.Match[str], re.Match[str]]


def _pair(pattern: re.Pattern[str], earlier: str, later: str, place: int) -> Pair | None:
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


def _part(pair: Pair, names: dict[str, str], otherwise: str) -> str:
    """Name the first group, in the order of the text, that differs."""
    ours, theirs = (match.groupdict() for match in pair)
    for group in ours:
        if ours[group] != theirs[group]:
            return names.get(group, otherwise)
    return otherwise


def _common_length(earlier: str, later: str) -> int:
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
