"""Worth and verdict: the arithmetic, and the number that decides."""

from __future__ import annotations

import math

import pytest

from prefold.advisor.verdict import Load, Reason, Thresholds, judge
from prefold.advisor.worth import GIB, MemoryPrice, Reuse, best_and_worst, ratio
from prefold.errors import InvalidInputError

MIB = 2**20


@pytest.mark.parametrize(
    ("count", "num_best", "num_worst"),
    [(0, 0, 0), (1, 1, 0), (5, 3, 2), (19, 10, 9), (20, 10, 10), (100, 10, 10)],
)
def test_none_is_among_the_best_and_the_worst(
    count: int, num_best: int, num_worst: int
) -> None:
    ordered = list(range(count))
    best, worst = best_and_worst(ordered)
    assert list(best) == ordered[:num_best]
    assert list(worst) == ordered[::-1][:num_worst]
    assert not set(best) & set(worst)


def worked_example(per_s: float) -> Reuse:
    """2,048 tokens that take 80 ms and hold 512 MiB."""
    return Reuse(saved_ms=80.0, held_bytes=512 * MIB, per_s=per_s)


@pytest.mark.parametrize(
    ("per_s", "saved", "per_gib", "pays"),
    [(1 / 60, 4 / 3, 8 / 3, False), (20.0, 1600.0, 3200.0, True)],
)
def test_the_worked_example(
    per_s: float,
    saved: float,
    per_gib: float,
    pays: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    reuse = worked_example(per_s)
    assert reuse.saved_ms_per_s == pytest.approx(saved)
    assert reuse.saved_ms_per_gib_s == pytest.approx(per_gib)
    # Half a GiB of 80 must save 6.25 ms a second, at 80 ms a reuse.
    assert reuse.break_even_per_s(MemoryPrice()) == pytest.approx(0.078125)
    assert reuse.pays(MemoryPrice()) is pays


def test_at_break_even_it_saves_what_the_memory_costs() -> None:
    price = MemoryPrice(machine_bytes=24 * GIB)
    even = worked_example(1.0).break_even_per_s(price)
    reuse = worked_example(even)
    assert reuse.pays(price)
    assert reuse.saved_ms_per_gib_s == pytest.approx(price.ms_per_gib_s)
    assert not worked_example(even * 0.999).pays(price)


def test_what_saves_nothing_never_pays() -> None:
    nothing = Reuse(saved_ms=0.0, held_bytes=0.0, per_s=5.0)
    assert not nothing.pays(MemoryPrice())
    assert (
        Reuse(saved_ms=0.0, held_bytes=1.0, per_s=5.0).break_even_per_s(MemoryPrice())
        == math.inf
    )
    assert Reuse(saved_ms=1.0, held_bytes=0.0, per_s=5.0).saved_ms_per_gib_s == math.inf


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_figures_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(InvalidInputError):
        Reuse(saved_ms=value, held_bytes=1.0, per_s=1.0)
    with pytest.raises(InvalidInputError):
        MemoryPrice(machine_bytes=value)


def test_nothing_of_nothing_is_nothing() -> None:
    assert ratio(0, 0) == 0.0
    assert ratio(1, 0) == math.inf
    assert ratio(1, 4) == 0.25


def load(**changes: float | None) -> Load:
    """1,000 requests of 2,000 tokens, three quarters of them hit, in 100 s."""
    figures: dict[str, float | None] = {
        "num_requests": 1000,
        "num_prompt_tokens": 2_000_000,
        "num_repeated_tokens": 1_500_000,
        "num_hit_tokens": 1_500_000,
        "median_prompt_tokens": 2000.0,
        "median_prefill_ms": 200.0,
        "prefill_ms": 200_000.0,
        "decode_ms": 100_000.0,
        "saved_ms": 150_000.0,
        "span_s": 100.0,
        "held_bytes": 2.0 * GIB,
    }
    return Load(**{**figures, **changes})  # type: ignore[arg-type]  # each by its name


@pytest.mark.parametrize(
    ("changes", "reason", "number"),
    [
        ({}, Reason.PAYS, "75.0% of the prompt tokens"),
        ({"span_s": None}, Reason.PAYS, "without time stamps"),
        ({"num_requests": 0}, Reason.NO_REQUESTS, "no requests"),
        (
            {"median_prompt_tokens": 40.0, "median_prefill_ms": 4.0},
            Reason.SHORT_PROMPTS,
            "the median one has 40 tokens, whose prefill takes 4.00 ms",
        ),
        (
            {"num_repeated_tokens": 20_000, "num_hit_tokens": 20_000, "saved_ms": 2000.0},
            Reason.NEVER_REPEATED,
            "1.0% of 2,000,000 prompt tokens were seen before",
        ),
        (
            {"decode_ms": 9_800_000.0},
            Reason.DECODE_BOUND,
            "prefill is 2.0% of it, so hits of 75.0% of the prompt tokens spare 1.5%",
        ),
        (
            {"num_hit_tokens": 40_000, "saved_ms": 4000.0},
            Reason.FEW_HITS,
            "only 2.0% were still cached",
        ),
        (
            {
                "num_hit_tokens": 90_000,
                "saved_ms": 9000.0,
                "prefill_ms": 30_000.0,
                "decode_ms": 10_000.0,
            },
            Reason.SHORT_HITS,
            "90 tokens a request save 9.00 ms",
        ),
        (
            {"held_bytes": 200.0 * GIB},
            Reason.MEMORY,
            "each saves 7.50 ms a second and should save 12.5 ms; it would pay from 16.67",
        ),
    ],
)
def test_the_verdict_names_the_number_that_decides(
    changes: dict[str, float | None], reason: Reason, number: str
) -> None:
    verdict = judge(load(**changes))
    assert verdict.reason is reason
    assert verdict.pays is (reason is Reason.PAYS)
    assert number in verdict.sentence
    start = "It pays" if verdict.pays else "It does not pay"
    assert verdict.sentence.startswith(start)
    assert verdict.sentence.endswith(".")


def test_the_price_decides_about_memory() -> None:
    dear = Thresholds(price=MemoryPrice(machine_bytes=GIB))
    assert judge(load(), dear).reason is Reason.MEMORY
    assert judge(load(held_bytes=0.0), dear).pays


def test_what_the_figures_are_under_is_said() -> None:
    assert judge(load(), given="with 4 GiB").sentence.startswith("It pays with 4 GiB: ")
