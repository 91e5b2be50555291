from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np
import pytest

from prefold.engine.config import RequestOptions
from prefold.engine.request import RequestId
from prefold.engine.request_queue import RequestQueue
from prefold.engine.sequence import Sequence, SequenceState
from prefold.errors import InvariantError
from support.fingerprints import make_fingerprint


def make(arrival: int, tenant: str = "red", *, preempted: bool = False) -> Sequence:
    sequence = Sequence(
        RequestId(f"request-{arrival}"),
        arrival,
        np.zeros(3, dtype=np.int64),
        max_tokens=2,
        fingerprint=make_fingerprint(),
        options=RequestOptions(tenant=tenant),
    )
    if preempted:
        sequence.state = SequenceState.PREEMPTED
    return sequence


def filled(*sequences: Sequence) -> RequestQueue:
    queue = RequestQueue()
    for sequence in sequences:
        queue.add(sequence)
        queue.check_invariants()
    return queue


def arrivals(sequences: Items[Sequence]) -> list[int]:
    return [sequence.arrival for sequence in sequences]


def test_candidates_come_from_the_tenants_in_turn() -> None:
    queue = filled(make(1), make(2), make(3), make(4, "blue"), make(5, "green"))
    assert arrivals(list(queue.candidates(16))) == [1, 4, 5, 2, 3]
    assert arrivals(list(queue.candidates(4))) == [1, 4, 5, 2]
    assert list(queue.candidates(0)) == []


def test_a_tenant_whose_turn_ended_is_the_last() -> None:
    first = make(1)
    queue = filled(first, make(2), make(4, "blue"))
    queue.remove(first)
    queue.end_turn("red")
    queue.end_turn("nobody")
    assert arrivals(list(queue.candidates(16))) == [4, 2]


def test_candidates_may_be_removed_while_they_are_looked_at() -> None:
    queue = filled(make(1), make(2), make(3, "blue"))
    seen = []
    for sequence in queue.candidates(16):
        seen.append(sequence.arrival)
        queue.remove(sequence)
        queue.check_invariants()
    assert seen == [1, 3, 2]
    assert len(queue) == 0


def test_preempted_sequences_are_kept_by_arrival() -> None:
    late, early = make(9, preempted=True), make(3, preempted=True)
    queue = filled(make(10), late, early)
    assert arrivals(queue.preempted) == [3, 9]
    assert len(queue) == 3
    queue.remove(early)
    assert arrivals(queue.sequences()) == [9, 10]


BREAKAGES: dict[str, Callable[[RequestQueue], object]] = {
    "order of arrival": lambda queue: queue.preempted.reverse(),
    "has a line": lambda queue: queue._lines.update(empty=OrderedDict()),
    "not preempted": lambda queue: queue.preempted.append(make(11)),
    "is not queued": lambda queue: queue._lines["red"].update(
        {make(12, preempted=True): None}
    ),
    "the length": lambda queue: queue._lines["red"].update({make(12): None}),
}


@pytest.mark.parametrize("words", BREAKAGES)
def test_the_check_finds_what_is_wrong(words: str) -> None:
    queue = filled(make(10), make(3, preempted=True), make(4, preempted=True))
    BREAKAGES[words](queue)
    with pytest.raises(InvariantError, match=words):
        queue.check_invariants()
