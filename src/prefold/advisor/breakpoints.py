"""Breakpoints: the part of a prompt that ends the prefix it shares with an earlier one.

Both texts agree up to a character; what stands there is looked at in both::

    earlier   ... The time is 09:41:07. You answer ...
    later     ... The time is 09:41:12. You answer ...
                                    ^ a clock in both, and its seconds differ

Only what both texts have at that place counts, so a prompt that merely mentions a time
somewhere is not blamed on it. Which token the place falls into is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prefold.advisor.break_kind import BreakKind, Finding
from prefold.advisor.id_values import find_number, find_random_id, find_uuid
from prefold.advisor.json_order import find_reordered
from prefold.advisor.line_order import find_reordered_lines
from prefold.advisor.places import common_length
from prefold.advisor.text_changes import (
    find_first_line,
    find_marks,
    find_reasoning,
    find_white_space,
)
from prefold.advisor.time_values import find_clock, find_date, find_time_stamp

#: Characters that must agree beyond two tokens that differ, to lay it to the tokens.
_SAME_TEXT = 8


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
            ends = max(ours.end, theirs.end)
            return explain_difference(earlier, later, at_token=at_token, ends_at=ends)
    return None


def explain_difference(
    earlier: str, later: str, *, at_token: int, ends_at: int | None = None
) -> Breakpoint:
    """Name what stands where the texts part.

    Args:
        earlier: The text of what is cached, at least around the place.
        later: The text of what was asked, beginning at the same character.
        at_token: Leading tokens of both prompts that agree.
        ends_at: Characters up to the end of the first token that differs, of the longer
            of the two: where the texts agree far beyond, only the cut into tokens does
            not. None where that is not known.
    """
    place = common_length(earlier, later)
    if place == len(earlier) == len(later) or _is_recut(earlier, later, place, ends_at):
        kind, detail = BreakKind.TOKENS, "the cut into tokens"
    else:
        kind, detail = _name(earlier, later, place)
    return Breakpoint(kind=kind, detail=detail, at_token=at_token)


def _is_recut(earlier: str, later: str, place: int, ends_at: int | None) -> bool:
    if ends_at is None or place < ends_at:
        return False
    return place >= ends_at + _SAME_TEXT or place == min(len(earlier), len(later))


def _name(earlier: str, later: str, place: int) -> tuple[BreakKind, str]:
    for find in _FINDERS:
        found = find(earlier, later, place)
        if found is not None:
            return found
    return BreakKind.TEXT, "the text"


_ORDERS = {
    "keys": (BreakKind.REORDERED_KEYS, "the order of JSON keys"),
    "list": (BreakKind.REORDERED_LIST, "the order of a JSON list"),
    "tools": (BreakKind.REORDERED_TOOLS, "the order of the tools"),
    "lines": (BreakKind.REORDERED_LIST, "the order of lines"),
}


def _find_order(earlier: str, later: str, place: int) -> Finding:
    found = find_reordered(earlier, later, place)
    lines = None if found is not None else find_reordered_lines(earlier, later, place)
    order = found or lines
    return None if order is None else _ORDERS[order]


#: In this order: what explains most of the texts first, then the narrowest value.
_FINDERS: tuple[Callable[[str, str, int], Finding], ...] = (
    find_reasoning,
    _find_order,
    find_uuid,
    find_date,
    find_clock,
    find_time_stamp,
    find_number,
    find_random_id,
    find_white_space,
    find_marks,
    find_first_line,
)
