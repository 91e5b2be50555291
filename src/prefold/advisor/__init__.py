"""Advisor: what a prompt's author can change so that more of it is reused.

| module | answers |
|---|---|
| ``breakpoints`` | which part of a prompt ended the prefix it shares with an earlier one |

Texts and token positions come from the caller; nothing here tokenises or computes.
"""

from prefold.advisor.breakpoints import (
    BreakKind,
    Breakpoint,
    Tokenize,
    TokenSpan,
    explain_difference,
    find_breakpoint,
)

__all__ = [
    "BreakKind",
    "Breakpoint",
    "TokenSpan",
    "Tokenize",
    "explain_difference",
    "find_breakpoint",
]
