"""Time values: clocks, dates and time stamps that differ between two texts.

Their shapes are looked for, not their words, so that most languages are met: a date is a
year with one or two small numbers, or a word, beside it. A shape alone is weak evidence,
since stories and questions have times, too. It counts if a word announces it or if the
text goes on in the same way after it, as it does after a value that a program filled in.
"""

from __future__ import annotations

import re

from prefold.advisor.break_kind import BreakKind, Finding
from prefold.advisor.places import Pair, before, first_part, is_framed, pair_at

_CLOCK = re.compile(
    r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})"
    r"(?::(?P<seconds>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?(?![\d:])"
    r"(?:[ \u202f]?(?P<half>[ap]\.?m)\b)?",
    re.ASCII | re.IGNORECASE,
)
#: Numbers with a letter of their own each: 9h41, 9h 41m 07s.
_LETTERED_CLOCK = re.compile(
    r"(?<![\w:])(?P<hour>\d{1,2})(?: ?h|[^\W\d_]) ?(?P<minute>\d{1,2})(?: ?[^\W\d_]{1,3}"
    r"(?: ?(?P<seconds>\d{1,2}) ?[^\W\d_]{1,3})?)?(?!\d)"
)
_CLOCK_PARTS = {
    "hour": "the clock's hour",
    "half": "the clock's half of the day",
    "minute": "the clock's minute",
    "seconds": "the clock's seconds",
    "fraction": "the clock's fractions of a second",
}

#: A month's name is any word: what makes it one is the day and the year around it.
_MONTH = r"(?P<month>[^\W\d_]{3,12})\.?"
_YEAR = r"(?P<year>\d{4})"
_SHORT_YEAR = r"(?P<year>\d{4}|\d{2})"
_SIGN = r"[-/.]?[^\W\d_]? ?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th|\.|º|er)?"
_DATE_SHAPES = (
    r"(?P<year>\d{4})(?P<sep>[-/.])(?P<month>\d{1,2})(?P=sep)(?P<day>\d{1,2})",
    # Day and month change places from country to country.
    rf"(?P<either>\d{{1,2}})(?P<sep>[-/.] ?)(?P<other>\d{{1,2}})(?P=sep){_SHORT_YEAR}",
    rf"{_DAY} (?:of |de )?{_MONTH},? (?:of |de )?{_YEAR}",
    rf"{_MONTH} {_DAY},? {_YEAR}",
    rf"{_DAY}[-/]{_MONTH}[-/]{_YEAR}",
    r"(?P<year>(?:19|20)\d{2})(?P<month>0[1-9]|1[0-2])(?P<day>0[1-9]|[12]\d|3[01])",
    # A sign of its own after each number.
    rf"{_YEAR}{_SIGN}(?P<month>\d{{1,2}}){_SIGN}(?P<day>\d{{1,2}})[^\W\d_]?",
    r"(?P<year>\d{4})-?W(?P<week>\d{2})(?:-?(?P<day>[1-7]))?",
)
_DATES = tuple(
    re.compile(rf"(?<!\w){shape}(?!\d)", re.IGNORECASE) for shape in _DATE_SHAPES
)
_DATE_PARTS = {
    "year": "the date's year",
    "month": "the date's month",
    "day": "the date's day",
    "week": "the date's week",
}
_WEEKDAYS = (
    *("mon(?:day)?", "tue(?:s(?:day)?)?", "wed(?:nesday)?", "thu(?:rs(?:day)?)?"),
    *("fri(?:day)?", "sat(?:urday)?", "sun(?:day)?"),
    *("montag", "dienstag", "mittwoch", "donnerstag", "freitag", "samstag", "sonntag"),
    *("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"),
    *("lunes", "martes", "mi[ée]rcoles", "jueves", "viernes", "s[áa]bado", "domingo"),
)
_WEEKDAY = re.compile(rf"(?<!\w)(?:{'|'.join(_WEEKDAYS)})(?!\w)", re.IGNORECASE)

#: What announces the time of now, at the end of what stands before it.
_ANNOUNCED = re.compile(
    r"(?:now|time|date|today|clock|as of|timestamp|generated|updated|utc|gmt|heute|"
    r"jetzt|datum|uhrzeit|zeit|stand|aujourd.hui|heure|maintenant|hora|fecha|hoy|ahora)"
    r"(?:\W|\b(?:is|ist|est|es|it|the|le|el|der|den|la)\b){0,6}$",
    re.IGNORECASE,
)
#: Seconds, milliseconds, microseconds or nanoseconds, from 2001 to 2033.
_TIME_STAMP = re.compile(r"(?<![\w.])1\d{9}(?:\d{3}|\d{6}|\d{9}|\.\d{1,9})?(?!\w)")

#: Years that a running program may print, and how far two requests may be apart.
_YEARS = range(1995, 2100)
_MAX_YEARS_APART = 1


def find_time_stamp(earlier: str, later: str, place: int) -> Finding:
    """Find seconds since 1970, whole or not."""
    pair = pair_at(_TIME_STAMP, earlier, later, place)
    return None if pair is None else (BreakKind.CLOCK, "the time stamp")


def find_date(earlier: str, later: str, place: int) -> Finding:
    """Find a date, or a weekday."""
    for pattern in _DATES:
        pair = pair_at(pattern, earlier, later, place)
        if pair is not None and _are_dates_of_now(pair) and _is_now(pair):
            return BreakKind.DATE, first_part(pair, _DATE_PARTS, "the date")
    pair = pair_at(_WEEKDAY, earlier, later, place)
    if pair is not None and is_framed(pair):
        return BreakKind.DATE, "the date's weekday"
    return None


def _are_dates_of_now(pair: Pair) -> bool:
    years = []
    for match in pair:
        parts = match.groupdict()
        year = int(parts["year"])
        years.append(year if year >= 100 else 2000 + year)
        numbers = [parts.get(name) for name in ("day", "either", "other")]
        if any(number is not None and not 1 <= int(number) <= 31 for number in numbers):
            return False
        month = parts.get("month")
        if month is not None and month.isdecimal() and not 1 <= int(month) <= 12:
            return False
    near = abs(years[0] - years[1]) <= _MAX_YEARS_APART
    return near and all(year in _YEARS for year in years)


def find_clock(earlier: str, later: str, place: int) -> Finding:
    """Find a time of the day."""
    for pattern in (_CLOCK, _LETTERED_CLOCK):
        pair = pair_at(pattern, earlier, later, place)
        if pair is None or not all(map(_is_time, pair)):
            continue
        # Nobody tells a story to the second.
        if all(match["seconds"] for match in pair) or _is_now(pair):
            return BreakKind.CLOCK, first_part(pair, _CLOCK_PARTS, "the clock")
    return None


def _is_time(match: re.Match[str]) -> bool:
    return int(match["hour"]) <= 24 and int(match["minute"]) <= 59


def _is_now(pair: Pair) -> bool:
    return is_framed(pair) or _ANNOUNCED.search(before(pair)) is not None
