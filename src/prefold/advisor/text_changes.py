"""Text changes: white space, marks between turns, first lines and reasoning that differ.

What comes after them is the same text again, or it would be another prompt.
"""

from __future__ import annotations

import re

from prefold.advisor.break_kind import BreakKind, Finding
from prefold.advisor.places import common_length

#: Characters that have to agree after a difference for it to count as a local one.
_SAME_AGAIN = 32
#: Of the text after it, what is looked at.
_MAX_REST = 4_096
#: Of a reply's reasoning.
_MAX_REASONING = 2**18

_INVISIBLE = "\u200b\u2060\ufeff\u00ad"


# -- white space -------------------------------------------------------------------------


def find_white_space(earlier: str, later: str, place: int) -> Finding:
    """Find white space that is more, less or other in one of them."""
    ends = [_skip_white_space(text, place) for text in (earlier, later)]
    # What differs may be the last of several signs.
    if ends == [place, place]:
        return None
    rests = [
        _squeezed(text[end : end + _MAX_REST])[: 2 * _SAME_AGAIN]
        for text, end in zip((earlier, later), ends, strict=True)
    ]
    if not _is_same_again(*rests, may_be_empty=True):
        return None
    return BreakKind.WHITE_SPACE, "the white space"


def _skip_white_space(text: str, place: int) -> int:
    while place < len(text) and (text[place].isspace() or text[place] in _INVISIBLE):
        place += 1
    return place


def _squeezed(text: str) -> str:
    kept = "".join(text.split())
    return kept.translate(dict.fromkeys(map(ord, _INVISIBLE)))


def _is_same_again(ours: str, theirs: str, *, may_be_empty: bool = False) -> bool:
    length = common_length(ours, theirs)
    if length >= _SAME_AGAIN:
        return True
    # The rest may be short, but then all of it agrees.
    return length == len(ours) == len(theirs) and (may_be_empty or length > 0)


# -- templates ---------------------------------------------------------------------------

#: Marks that no author writes: of the beginning, of turns and of roles.
_MARK = re.compile(
    r"<\|[^<>|]{1,40}\|>|<\uff5c[^<>\uff5c]{1,40}\uff5c>|</?s>|<(?:bos|eos|pad|start_of_turn|end_of_turn)>|"
    r"\[/?[A-Z_]{3,24}\]|<</?[A-Z]{2,12}>>|^#{2,4} ?[^\W\d_]{2,16}:?[ \t]*$|"
    r"^[^\W\d_]{1,16}:[ \t]*(?=\S|$)|<\|?/?(?:system|user|assistant|model|human)\|?>",
    re.MULTILINE | re.IGNORECASE,
)
_ROLE = re.compile(
    r"\b(?:system|user|assistant|model|human|developer|instruction|response)\b\s*",
    re.IGNORECASE,
)


def find_marks(earlier: str, later: str, place: int) -> Finding:
    """Find other marks around turns whose content is the same."""
    starts = {_mark_start(text, place) for text in (earlier, later)} - {None}
    for start in sorted(each for each in starts if each is not None):
        heads = [text[start : start + _MAX_REST] for text in (earlier, later)]
        ours, theirs = map(_content, heads)
        marks = [_MARK.findall(head) for head in heads]
        length = common_length(ours, theirs)
        is_same = length >= _SAME_AGAIN or (0 < length == len(ours) == len(theirs))
        if is_same and marks[0] != marks[1]:
            return BreakKind.TEMPLATE, "the template"
    return None


def _mark_start(text: str, place: int) -> int | None:
    """Return where a mark begins that reaches over ``place``, or stands right there."""
    begin = text.rfind("\n", 0, place) + 1
    for match in _MARK.finditer(text, max(begin, place - 64), place + 64):
        if match.start() <= place <= match.end():
            return match.start()
    return None


def _content(text: str) -> str:
    return "".join(_ROLE.sub("", _MARK.sub("", text)).split())


def find_first_line(earlier: str, later: str, place: int) -> Finding:
    """Find another first line over a text that goes on in the same way."""
    if not _is_first_line(earlier, place):
        return None
    rests = [text[place:].partition("\n")[2] for text in (earlier, later)]
    if not _is_same_again(*(rest[: 2 * _SAME_AGAIN] for rest in rests)):
        return None
    return BreakKind.TEMPLATE, "the template"


def _is_first_line(text: str, place: int) -> bool:
    """Whether nothing but marks stands on the lines before that of ``place``."""
    above = text[:place].rpartition("\n")[0]
    return len(above) < 256 and not _content(above)


# -- reasoning ---------------------------------------------------------------------------

_THINKING = (
    r"(?:\w+:)?(?:think|thinking|thought|thoughts|reason|reasoning|reflection|scratchpad)"
)
#: The sign that opens a block, and what closes it.
_OPENINGS = (
    re.compile(rf"<(?P<name>{_THINKING})>", re.IGNORECASE),
    re.compile(rf"\[(?P<name>{_THINKING})\]", re.IGNORECASE),
    re.compile(r"<\|begin_of_(?P<name>thought|reasoning|thinking)\|>", re.IGNORECASE),
    re.compile(r"<\|channel\|>(?P<name>analysis)<\|message\|>"),
    re.compile(rf"[◁⟨](?P<name>{_THINKING})[▷⟩]", re.IGNORECASE),
)
_CLOSINGS = ("</{}>", "[/{}]", "<|end_of_{}|>", "<|end|>", "◁/{}▷")
#: What may stand around a block and belongs to it.
_AROUND = re.compile(
    r"(?:\s|<\|start\|>assistant|<\|channel\|>final<\|message\|>|"
    r"<\|begin_of_solution\|>|<\|end_of_solution\|>)*"
)
#: In any language, a mark with a name opens, and the same with a slash closes.
_ANY_OPENING = re.compile(
    r"(?P<open>[<\[{(◁⟨]\|?)(?P<name>[^\W\d][\w:.-]{1,30})(?P<shut>\|?[>\]})▷⟩])"
)
_REPLY = re.compile(r"(?:assistant|model|gpt|bot|\bAI\b)\W{0,24}$", re.IGNORECASE)


def find_reasoning(earlier: str, later: str, place: int) -> Finding:
    """Find a block of reasoning that is in one of them, before the same text."""
    for ours, theirs in ((earlier, later), (later, earlier)):
        if _is_without(ours, theirs, place):
            return BreakKind.REASONING, "the reply's reasoning"
    return None


def _is_without(full: str, short: str, place: int) -> bool:
    """Whether ``short`` is ``full`` without a block of reasoning around ``place``."""
    begin = max(place - 64, 0)
    for opening, closing in zip(_OPENINGS, _CLOSINGS, strict=True):
        for match in opening.finditer(full, begin, place + 80):
            if match.start() <= place + 2 and _goes_on(
                full, short, match, closing.format(match["name"]), is_known=True
            ):
                return True
    for match in _ANY_OPENING.finditer(full, begin, place + 64):
        closing = f"{match['open']}/{match['name']}{match['shut']}"
        is_reply = _REPLY.search(full[max(match.start() - 48, 0) : match.start()])
        if (
            is_reply is not None
            and match.start() <= place + 2
            and _goes_on(full, short, match, closing, is_known=False)
        ):
            return True
    return False


def _goes_on(
    full: str, short: str, opening: re.Match[str], closing: str, *, is_known: bool
) -> bool:
    """Whether after the block, one text goes on as the other does where it begins."""
    start = opening.start()
    if short.startswith(opening[0], start):
        return False
    end = full.find(closing, opening.end(), opening.end() + _MAX_REASONING)
    if end < 0:
        # A reply that was cut off while it reasoned.
        return is_known and len(full) - start < _MAX_REASONING
    rests = []
    for text, at in ((full, end + len(closing)), (short, start)):
        around = _AROUND.match(text, at)
        begin = at if around is None else around.end()
        rests.append(_squeezed(text[begin : begin + _MAX_REST]))
    length = common_length(*rests)
    # A reply may be short, but then all of it agrees.
    return length >= _SAME_AGAIN or 0 < length == min(map(len, rests))
