"""The last requests are remembered by the id that their clients were told."""

from __future__ import annotations

from prefold.server.timings import MAX_CHOICES, MAX_REQUESTS, RecentTimings
from support.outputs import make_output


def test_choices_come_in_the_order_of_their_ends() -> None:
    timings = RecentTimings()
    timings.note("a", make_output(cached=0))
    timings.note("a", make_output(cached=32))
    found = timings.find("a")
    assert found is not None
    assert [choice.usage.cached_tokens for choice in found] == [0, 32]
    assert timings.find("b") is None


def test_old_requests_are_forgotten() -> None:
    timings = RecentTimings()
    for number in range(MAX_REQUESTS + 1):
        timings.note(str(number), make_output())
    assert timings.find("0") is None
    assert timings.find("1") is not None
    assert timings.find(str(MAX_REQUESTS)) is not None


def test_one_id_cannot_fill_the_memory() -> None:
    timings = RecentTimings()
    for _ in range(MAX_CHOICES + 10):
        timings.note("a", make_output())
    found = timings.find("a")
    assert found is not None
    assert len(found) == MAX_CHOICES
