"""What a prompt token costs is the mean over the last steps that computed prompts."""

from __future__ import annotations

import pytest

from prefold.server.prefill_price import NUM_STEPS, PrefillPrice


def test_there_is_no_price_before_the_first_step() -> None:
    price = PrefillPrice(min_tokens=4)
    assert price.seconds_per_token is None
    price.note(1.0, 3)
    assert price.seconds_per_token is None


def test_it_is_weighted_by_tokens() -> None:
    price = PrefillPrice(min_tokens=4)
    price.note(1.0, 10)
    price.note(1.0, 90)
    assert price.seconds_per_token == pytest.approx(0.02)


def test_old_steps_are_forgotten() -> None:
    price = PrefillPrice(min_tokens=1)
    price.note(1000.0, 1)
    for _ in range(NUM_STEPS):
        price.note(0.5, 1)
    assert price.seconds_per_token == pytest.approx(0.5)


def test_rounding_never_makes_it_negative() -> None:
    price = PrefillPrice(min_tokens=1)
    for _ in range(3 * NUM_STEPS):
        price.note(0.1, 1)
    for _ in range(NUM_STEPS):
        price.note(0.0, 1)
    found = price.seconds_per_token
    assert found is not None
    assert 0 <= found < 1e-9
