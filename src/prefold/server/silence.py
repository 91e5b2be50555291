"""Silence: closes connections on which nothing happens for too long.

The web server has a time limit between requests only, which the first byte of the next
one ends: a client that opens connections and sends a header a byte a minute would keep
them for ever. So would one that asks for a long answer and stops reading it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from prefold.server.exchange import num_sent_in

_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection may be silent.

    Attributes:
        first_s: From its beginning to the last header of its first request.
        next_s: From an answer to the last header of the next request.
        unread_s: From when the client last read of an answer that is being sent.
    """

    first_s: float
    next_s: float
    unread_s: float


@dataclass(frozen=True, slots=True)
class _Silence:
    """Since when a connection looks as it does.

    Attributes:
        cycle: Its last request.
        unread: Of an answer that does not get through, the pieces sent before and the
            bytes that wait: one of the two changes when the client reads. None where
            nothing waits.
    """

    cycle: RequestResponseCycle | None
    unread: tuple[int, int] | None
    since: float

    def goes_on(self, other: _Silence) -> bool:
        return self.cycle is other.cycle and self.unread == other.unread


class SilenceWatch:
    """Remembers since when nothing has happened on each connection of one listener."""

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
            if not isinstance(connection, H11Protocol):
                continue
            silence = _silence_of(connection, now)
            if silence is None:
                continue
            before = self._silences.get(connection)
            if before is not None and before.goes_on(silence):
                silence = before
            if now - silence.since >= self._limit_s(silence):
                # At once: closing would wait until what was sent has been read.
                connection.transport.abort()
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
        if silence.unread is not None:
            return patience.unread_s
        return patience.first_s if silence.cycle is None else patience.next_s


def _silence_of(connection: H11Protocol, now: float) -> _Silence | None:
    """Return how a connection is silent; None if it is not."""
    if not _is_busy(connection.cycle):
        return _Silence(connection.cycle, None, now)
    if not connection.flow.write_paused:
        return None
    num_bytes = connection.transport.get_write_buffer_size()
    return _Silence(connection.cycle, (num_sent_in(connection.scope), num_bytes), now)


def _is_busy(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete
