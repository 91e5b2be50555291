"""Hits: how much of a prompt was reused, in three classes."""

from __future__ import annotations

from enum import Enum

from prefold.engine.request import Usage
from prefold.tree.walk import MIN_COPY_TOKENS


class HitClass(Enum):
    """What part of its prompt a request did not compute."""

    NONE = "none"
    PARTIAL = "partial"
    #: All that an equal prompt can hit: the last token is always computed, and up to
    #: three before it are not worth a copy.
    FULL = "full"


def hit_class(usage: Usage) -> HitClass:
    """Return the class of a request's hit."""
    if usage.cached_tokens <= 0:
        return HitClass.NONE
    if usage.prompt_tokens - usage.cached_tokens <= MIN_COPY_TOKENS:
        return HitClass.FULL
    return HitClass.PARTIAL
