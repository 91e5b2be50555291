"""Held tokens: log-probabilities wait with their text, and go if that is cut off.

A token that begins at or after the place where a stop text cuts the reply is no part of
what the client reads, so nothing is told of it but that it was produced::

    stop "END"    tokens     "the "  "E"  "N"  "D"
                  begin at     0      4    5    6      cut at 4: only the first is listed
"""

from __future__ import annotations

from dataclasses import replace

from prefold.engine.logprobs import TokenLogprob
from prefold.engine.outbox import NewToken
from prefold.engine.request import RequestId


class HeldTokens:
    """Tokens of one reply that wait until their text is certain. Owned by the reply.

    Attributes:
        logprobs: Of the tokens let go that are listed, in their order.
    """

    __slots__ = ("_held", "_text", "logprobs")

    def __init__(self) -> None:
        #: With the character of the reply that each begins at.
        self._held: list[tuple[int, NewToken]] = []
        #: Came with tokens that are still held.
        self._text = ""
        self.logprobs: list[TokenLogprob] = []

    def add(self, begins_at: int, token: NewToken) -> None:
        """Hold a token, and the text that came with it."""
        self._held.append((begins_at, replace(token, text="")))
        self._text += token.text

    def let_go(self, num_certain: int | None) -> list[NewToken]:
        """Return the tokens that begin before so many characters; all of them if None.

        The last one comes with all text so far.
        """
        num_free = len(self._held)
        while num_free and num_certain is not None:
            if self._held[num_free - 1][0] < num_certain:
                break
            num_free -= 1
        free = [token for _, token in self._held[:num_free]]
        del self._held[:num_free]
        self.logprobs += [t.logprob for t in free if t.logprob is not None]
        if free:
            free[-1] = replace(free[-1], text=self._text)
            self._text = ""
        return free

    def end(self, cut_at: int | None) -> list[NewToken]:
        """Return all tokens; those that begin at ``cut_at`` or later are not listed."""
        if cut_at is not None:
            self._held = [
                (at, token if at < cut_at else replace(token, logprob=None))
                for at, token in self._held
            ]
        return self.let_go(None)

    def fork(self, request_id: RequestId) -> HeldTokens:
        """Return independent ones that continue from here, of another request."""
        twin = HeldTokens()
        twin._held = [(at, replace(t, request_id=request_id)) for at, t in self._held]
        twin._text = self._text
        twin.logprobs = list(self.logprobs)
        return twin
