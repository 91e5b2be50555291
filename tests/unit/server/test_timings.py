"""The last requests are remembered by the id that their clients were told."""

from __future__ import annotations

from prefold.server.observer import ExchangeId
from prefold.server.timings import MAX_CHOICES, MAX_REQUESTS, RecentTimings
from support.outputs import make_output


def named(text: str, serial: int, tenant: str = "acme") -> ExchangeId:
    return ExchangeId(text=text, serial=serial, tenant=tenant)


def cached_of(timings: RecentTimings, text: str, tenant: str = "acme") -> list[int]:
    """Return what tells the choices of these tests apart."""
    return [choice.usage.cached_tokens for choice in timings.find(text, tenant) or ()]


def test_choices_come_in_the_order_of_their_ends() -> None:
    timings = RecentTimings()
    timings.note(named("a", 1), make_output(cached=0))
    timings.note(named("a", 1), make_output(cached=32))
    assert cached_of(timings, "a") == [0, 32]
    assert timings.find("b", "acme") is None


def test_requests_of_different_tenants_are_never_one() -> None:
    timings = RecentTimings()
    timings.note(named("a", 1, "acme"), make_output(cached=1))
    timings.note(named("a", 2, "blue"), make_output(cached=2))
    timings.note(named("a", 1, "acme"), make_output(cached=3))
    assert cached_of(timings, "a", "acme") == [1, 3]
    assert cached_of(timings, "a", "blue") == [2]
    assert timings.tenants_of("a") == ["acme", "blue"]
    assert timings.tenants_of("b") == []
    assert timings.find("a", "other") is None


def test_of_a_tenants_requests_with_one_id_the_latest_is_shown() -> None:
    timings = RecentTimings()
    timings.note(named("a", 1), make_output(cached=1))
    timings.note(named("a", 2), make_output(cached=2))
    # The first one's second choice ends after it.
    timings.note(named("a", 1), make_output(cached=3))
    timings.note(named("a", 2), make_output(cached=4))
    assert cached_of(timings, "a") == [2, 4]


def test_old_requests_are_forgotten() -> None:
    timings = RecentTimings()
    for number in range(MAX_REQUESTS + 1):
        timings.note(named(str(number), number), make_output())
    assert timings.find("0", "acme") is None
    assert timings.tenants_of("0") == []
    assert timings.find("1", "acme") is not None
    assert timings.find(str(MAX_REQUESTS), "acme") is not None


def test_what_a_choice_was_just_noted_of_is_not_old() -> None:
    for serial in (0, MAX_REQUESTS):
        timings = RecentTimings()
        for number in range(MAX_REQUESTS):
            timings.note(named(str(number), number), make_output())
        # One more choice of the first request, or a new one of the same id.
        timings.note(named("0", serial), make_output())
        timings.note(named("new", MAX_REQUESTS + 1), make_output())
        assert timings.find("0", "acme") is not None
        assert timings.find("1", "acme") is None


def test_one_request_cannot_fill_the_memory() -> None:
    timings = RecentTimings()
    for _ in range(MAX_CHOICES + 10):
        timings.note(named("a", 1), make_output())
    assert len(cached_of(timings, "a")) == MAX_CHOICES
