"""Adapter patterns: regular expressions of an adapter's configuration, as far as safe.

They come with files from elsewhere, and Python's matcher holds the whole process while it
tries: one that repeats a choice can try for years on a name of forty letters.
"""

from __future__ import annotations

import re

from prefold.errors import ConfigError

_MAX_LENGTH = 4096
#: Each more multiplies what has to be tried by the length of a name.
_MAX_REPEATS = 8

#: A character that means itself, or a class of characters: nothing in it repeats.
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)


def compile_pattern(setting: str, text: str) -> re.Pattern[str]:
    """Compile a pattern.

    Args:
        setting: Where it stands, for the message.
        text: The pattern.

    Raises:
        ConfigError: It is none, or may take too long to match.
    """
    if len(text) > _MAX_LENGTH or _may_take_long(text):
        raise ConfigError(
            f"a pattern in {setting} could take very long to match: it is too long, "
            f"repeats a choice or repeats more than {_MAX_REPEATS} times; list the "
            "modules' names instead"
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"a pattern in {setting} is no regular expression") from error


def _may_take_long(text: str) -> bool:
    """Tell whether a repeated group can match in several ways, or much is repeated."""
    plain = _ATOM.sub("a", text).replace("(?", "(")
    # Of each open group, whether there was a choice inside.
    groups = [False]
    for index, sign in enumerate(plain):
        if sign == "(":
            groups.append(False)
        elif sign == ")" and len(groups) > 1:
            has_choice = groups.pop()
            if has_choice and plain[index + 1 : index + 2] in ("*", "+", "{"):
                return True
            groups[-1] |= has_choice
        elif sign in "*+{?|":
            groups[-1] = True
    return sum(map(plain.count, "*+{")) > _MAX_REPEATS
