"""Stop texts: ends a reply before the one of some texts that is complete first.

What could be the beginning of a stop text is held back until more text decides::

    stop "END"     pieces "the ", "E", "N", "ough"
                   given  "the ", "" , "" , "ENough"

Complete first, and of those that end together the one that begins first: so the end is
what it would be if the text came character by character, however it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopText:
    """Watches one reply's text. Owned by the reply.

    Attributes:
        is_found: Whether a stop text has come; nothing is given any more then.
        num_given: Characters given so far.
    """

    __slots__ = ("_held", "_pieces", "_stops", "is_found", "num_given")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._pieces: list[str] = []
        self.is_found = False
        self.num_given = 0

    @property
    def text(self) -> str:
        """All text given so far. Costs as much as the text is long."""
        return "".join(self._pieces)

    def push(self, piece: str) -> str:
        """Add text; return what is certain to be part of the reply.

        O(piece times stop texts), and what they are long.
        """
        if self.is_found:
            return ""
        if not self._stops:
            return self._give(piece)
        text = self._held + piece
        # Of one stop text, the first occurrence is also the one that ends first.
        found = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if found:
            _, start = min(found)
            self.is_found = True
            self._held = ""
            return self._give(text[:start])
        num_held = self._num_open(text)
        self._held = text[len(text) - num_held :]
        return self._give(text[: len(text) - num_held])

    def finish(self) -> str:
        """Return what was held back: no more text comes."""
        held, self._held = self._held, ""
        return self._give(held)

    def fork(self) -> StopText:
        """Return an independent one that continues from here."""
        twin = StopText(self._stops)
        twin._held = self._held
        twin._pieces = list(self._pieces)
        twin.is_found = self.is_found
        twin.num_given = self.num_given
        return twin

    def _give(self, text: str) -> str:
        if text:
            self._pieces.append(text)
            self.num_given += len(text)
        return text

    def _num_open(self, text: str) -> int:
        """Return how many last characters may begin a stop text."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
