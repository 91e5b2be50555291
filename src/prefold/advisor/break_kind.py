"""Break kind: what can end the prefix that two prompts share."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias


class BreakKind(Enum):
    """What differs."""

    CLOCK = "clock"
    DATE = "date"
    UUID = "uuid"
    RANDOM_ID = "random_id"
    COUNTER = "counter"
    REORDERED_KEYS = "reordered_keys"
    REORDERED_LIST = "reordered_list"
    REORDERED_TOOLS = "reordered_tools"
    WHITE_SPACE = "white_space"
    #: The first line, or the marks between the turns, were replaced; the rest is the same.
    TEMPLATE = "template"
    #: A reply's reasoning is in one of them and not in the other.
    REASONING = "reasoning"
    #: The same text, cut into other tokens.
    TOKENS = "tokens"
    TEXT = "text"


#: A kind, and what differs as a plural subject.
Finding: TypeAlias = tuple[BreakKind, str] | None
