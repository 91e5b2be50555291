"""Id values: UUIDs, random ids and counters that differ between two texts."""

from __future__ import annotations

import re
from itertools import pairwise

from prefold.advisor.break_kind import BreakKind, Finding
from prefold.advisor.places import Pair, after, before, is_framed, pair_at

_UUID = re.compile(
    r"(?<![0-9A-Za-z])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(?![0-9A-Za-z])",
    re.ASCII | re.IGNORECASE,
)
_WORD = re.compile(r"[0-9A-Za-z_]+(?:-[0-9A-Za-z_]+)*", re.ASCII)
_NUMBER = re.compile(r"(?<![0-9A-Za-z])(?<!\d[.,])\d+(?![0-9A-Za-z_]|[.,]\d)", re.ASCII)
_HEX = re.compile(r"[0-9a-f]+", re.ASCII | re.IGNORECASE)

_MIN_HEX = 8
_MIN_MIXED = 12
#: Where a word says that it is an id.
_MIN_NAMED = 6
_NAMED = re.compile(
    r"(?:\bid|uid|uuid|key|token|nonce|session|trace|span|request|req|sha|commit|ref|hash|"
    r"seed|run|build|ticket|salt|#)[\s:=#\"'(\[_-]*$",
    re.IGNORECASE,
)

#: Numbers of more digits are nobody's count.
_MAX_COUNTER_DIGITS = 9
_COUNTED = re.compile(
    r"(?:[#№\[]|\bn[°º.]|\bno\.?|\bnr\.?|\bnum(?:ber|éro|ero)?\.?|"
    r"\b(?:request|turn|message|msg|attempt|step|iteration|call|session|run|sequence|seq|"
    r"counter|count|round|try|retry|trace|job|task|ticket|visit|query|"
    r"anfrage|versuch|nachricht|schritt|runde|sitzung|aufruf|zähler|"
    r"requête|tentative|étape|tour|appel|compteur|"
    r"solicitud|intento|mensaje|paso|turno|llamada|contador))[\s:=#_-]{0,3}$",
    re.IGNORECASE,
)
#: What a number of things is followed by: the things.
_THINGS = re.compile(r"\s?(?!of\b|von\b|sur\b|de\b|out\b)[^\W\d_]|\s?[%$€£¥°]")
#: Of a number that no word calls a count: what two requests may lie apart.
_MAX_STEP = 3


def find_uuid(earlier: str, later: str, place: int) -> Finding:
    """Find a UUID."""
    pair = pair_at(_UUID, earlier, later, place)
    return None if pair is None else (BreakKind.UUID, "the UUID")


def find_number(earlier: str, later: str, place: int) -> Finding:
    """Find a counter, or an id of digits alone."""
    pair = pair_at(_NUMBER, earlier, later, place)
    if pair is None:
        return None
    if any(len(match[0]) > _MAX_COUNTER_DIGITS for match in pair):
        is_id = is_framed(pair) or _NAMED.search(before(pair)) is not None
        return (BreakKind.RANDOM_ID, "the random id") if is_id else None
    return (BreakKind.COUNTER, "the counter") if _is_counter(pair) else None


def _is_counter(pair: Pair) -> bool:
    if _COUNTED.search(before(pair)) is not None:
        return True
    # Numbers in prose count something that stands after them.
    if any(_THINGS.match(after(match)) for match in pair):
        return False
    ours, theirs = (int(match[0]) for match in pair)
    return abs(ours - theirs) <= _MAX_STEP and is_framed(pair)


def find_random_id(earlier: str, later: str, place: int) -> Finding:
    """Find letters and digits in an order that no name has."""
    pair = pair_at(_WORD, earlier, later, place)
    if pair is None:
        return None
    is_named = _NAMED.search(before(pair)) is not None
    if not all(_looks_random(match[0], is_named=is_named) for match in pair):
        return None
    return BreakKind.RANDOM_ID, "the random id"


def _looks_random(word: str, *, is_named: bool) -> bool:
    # The longest piece, so that a prefix as in "req-7f3c9a52" does not hide the rest.
    piece = max(re.split("[-_]", word), key=len)
    is_long = len(piece) >= _MIN_MIXED
    num_digits = sum(letter.isdigit() for letter in piece)
    if num_digits in (0, len(piece)):
        return is_long and num_digits == 0 and _changes_often(piece, 0.45)
    # "chapter12" is letters, then digits; an id changes between them often.
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(piece))
    if is_named and len(piece) >= _MIN_NAMED and changes >= 2:
        return True
    if len(piece) >= _MIN_HEX and _HEX.fullmatch(piece):
        return True
    return is_long and (changes >= 3 or _changes_often(piece, 0.3))


def _changes_often(piece: str, share: float) -> bool:
    """Whether small letters, capitals and digits follow each other without an order.

    In letters and digits drawn at random six of ten do, in CamelCase three at most.
    """
    kinds = [0 if each.isdigit() else 1 if each.islower() else 2 for each in piece]
    changes = sum(a != b for a, b in pairwise(kinds))
    return len(set(kinds)) > 1 and changes >= share * (len(piece) - 1) and changes >= 4
