"""Request queue: who is to be admitted next.

Two parts. Preempted sequences come first, the oldest first, whatever their tenant: they
were admitted once already. Behind them every tenant has its own line in the order of
arrival, and tenants take turns: an admission sends its tenant to the end::

    preempted   3  8
    tenants     blue: 11 14 15     <- its turn
                red:  9 12
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice

from prefold.engine.sequence import Sequence, SequenceState
from prefold.errors import InvariantError


class RequestQueue:
    """Sequences without a lease. Owned by the scheduler. All operations O(1), or O(log n).

    Invariants:
        - preempted sequences are sorted by arrival, lines are in order of arrival
        - no line is empty
        - the length is that of all parts together
    """

    __slots__ = ("_lines", "_num_queued", "preempted")

    def __init__(self) -> None:
        #: Preempted sequences by arrival, oldest first.
        self.preempted: list[Sequence] = []
        # Ordered dictionaries, because a plain one gets slow at its front as items are
        # taken from there.
        self._lines: OrderedDict[str, OrderedDict[Sequence, None]] = OrderedDict()
        self._num_queued = 0

    def __len__(self) -> int:
        return self._num_queued + len(self.preempted)

    def add(self, sequence: Sequence) -> None:
        """Take in a new request, or one that was preempted."""
        if sequence.state is SequenceState.PREEMPTED:
            insort(self.preempted, sequence, key=_arrival)
            return
        self._lines.setdefault(sequence.tenant, OrderedDict())[sequence] = None
        self._num_queued += 1

    def remove(self, sequence: Sequence) -> None:
        """Take one out, admitted or given up."""
        if sequence.state is SequenceState.PREEMPTED:
            self.preempted.remove(sequence)
            return
        line = self._lines[sequence.tenant]
        del line[sequence]
        self._num_queued -= 1
        if not line:
            del self._lines[sequence.tenant]

    def end_turn(self, tenant: str) -> None:
        """Send a tenant that had one admitted behind the others."""
        if tenant in self._lines:
            self._lines.move_to_end(tenant)

    def candidates(self, limit: int) -> Iterator[Sequence]:
        """Yield at most ``limit`` new requests, taking one from each tenant in turn.

        Those yielded may be removed meanwhile.
        """
        turns = deque(iter(list(islice(line, limit))) for line in self._first_lines(limit))
        while turns and limit > 0:
            line = turns.popleft()
            for sequence in line:
                limit -= 1
                turns.append(line)
                yield sequence
                break

    def sequences(self) -> list[Sequence]:
        """Return all of them. O(n)."""
        return [*self.preempted, *(s for line in self._lines.values() for s in line)]

    def _first_lines(self, limit: int) -> list[OrderedDict[Sequence, None]]:
        return list(islice(self._lines.values(), limit))

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if order, states or the length are wrong."""
        lines = [list(line) for line in self._lines.values()]
        for line in [self.preempted, *lines]:
            if [s.arrival for s in line] != sorted({s.arrival for s in line}):
                raise InvariantError("a line is not in order of arrival")
        if not all(lines):
            raise InvariantError("a tenant without requests has a line")
        if any(s.state is not SequenceState.PREEMPTED for s in self.preempted):
            raise InvariantError(
                "a sequence that was not preempted is among those that were"
            )
        if any(s.state is not SequenceState.QUEUED for line in lines for s in line):
            raise InvariantError("a sequence in a tenant's line is not queued")
        if any(s.lease is not None for s in self.sequences()):
            raise InvariantError("a queued sequence holds a lease")
        if len(self) != len(self.preempted) + sum(len(line) for line in lines):
            raise InvariantError("the length is not that of all lines")


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
