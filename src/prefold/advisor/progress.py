"""Progress: whom to tell how far long work is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Whom to tell how far it is.

    Attributes:
        begin: Called with a step's name and its size, when it begins.
        advance: Called with how much of it is done.
    """

    begin: Callable[[str, int], None] = lambda _step, _size: None
    advance: Callable[[int], None] = lambda _done: None


SILENT = Progress()
