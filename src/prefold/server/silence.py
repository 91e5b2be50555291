"""Silence: closes connections on which no request is under way for too long.

The web server has a time limit between requests only, which the first byte of the next
one ends: a client that opens connections and sends a header a byte a minute would keep
them for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection may be silent.

    Attributes:
        first_s: From its beginning to the last header of its first request.
        next_s: From an answer to the last header of the next request.
    """

    first_s: float
    next_s: float


@dataclass(frozen=True, slots=True)
class _Silence:
    last: RequestResponseCycle | None
    since: float


class SilenceWatch:
    """Remembers since when each connection of one listener has had no request."""

    __slots__ = ("_clock", "_patience", "_silences")

    def __init__(self, patience: Patience, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._silences: dict[H11Protocol, _Silence] = {}

    def sweep(self, connections: Iterable[object]) -> int:
        """Close what has been silent for too long; return how many that were."""
        now = self._clock()
        silences: dict[H11Protocol, _Silence] = {}
        num_closed = 0
        for connection in connections:
            if not isinstance(connection, H11Protocol) or _is_busy(connection.cycle):
                continue
            silence = self._silences.get(connection)
            if silence is None or silence.last is not connection.cycle:
                silence = _Silence(connection.cycle, now)
            if now - silence.since >= self._limit_s(silence):
                connection.transport.close()
                num_closed += 1
            else:
                silences[connection] = silence
        self._silences = silences
        return num_closed

    async def run(self, connections: Iterable[object]) -> None:
        """Sweep again and again, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.sweep(connections)

    def _limit_s(self, silence: _Silence) -> float:
        patience = self._patience
        return patience.first_s if silence.last is None else patience.next_s


def _is_busy(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete
