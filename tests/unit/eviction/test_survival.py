from random import Random

import numpy as np
import pytest

from prefold.eviction.survival import EDGES, NUM_AGES, Survival, age_of, end_of

FACES = 2


def model() -> Survival:
    return Survival([FACES, FACES])


def observe(survival: Survival, features: tuple[int, ...], rate: float, seed: int) -> None:
    """Let blocks of a kind be used at a constant rate, each until its first use."""
    dice = Random(seed)  # noqa: S311 -- a test's dice
    kind = survival.kind_of(features)
    for _ in range(1500):
        used_at = dice.expovariate(rate)
        for age in range(NUM_AGES):
            begin, end = EDGES[age], end_of(age)
            survival.note_exposure(kind, age, max(min(used_at, end) - begin, 0.0))
            if used_at < end:
                survival.note_event(kind, age, 1.0)
                break


def test_ages_cover_all_times_without_a_gap() -> None:
    for age in range(NUM_AGES):
        assert age_of(EDGES[age]) == age
        assert age == NUM_AGES - 1 or end_of(age) == EDGES[age + 1]
    assert end_of(NUM_AGES - 1) == float("inf")
    assert age_of(1e12) == NUM_AGES - 1


def test_while_nothing_is_known_younger_is_worth_more() -> None:
    survival = model()
    kind = survival.kind_of((0, 1))
    worth = [survival.worth(kind, age) for age in range(NUM_AGES)]
    assert worth == sorted(worth, reverse=True)
    assert all(each > 0 for each in worth)


def test_a_constant_rate_is_learned_and_is_what_waiting_is_worth() -> None:
    survival = model()
    for turn in range(40):
        observe(survival, (0, 0), 0.2, turn)
        survival.fit(0.9)
    kind = survival.kind_of((0, 0))
    # Without memory, having waited makes no difference where much was seen.
    for age in range(6):
        assert survival.worth(kind, age) == pytest.approx(0.2, rel=0.15)


def test_features_that_multiply_are_told_apart_and_carry_over() -> None:
    survival = model()
    rates = {(0, 0): 0.05, (0, 1): 0.2, (1, 0): 0.1}
    for turn in range(60):
        for index, (features, rate) in enumerate(rates.items()):
            observe(survival, features, rate, 10 * turn + index)
        survival.fit(0.9)
    for features, rate in rates.items():
        kind = survival.kind_of(features)
        assert survival.worth(kind, 3) == pytest.approx(rate, rel=0.2)
    # Never seen together: four times by the one, twice by the other.
    assert survival.worth(survival.kind_of((1, 1)), 3) == pytest.approx(0.4, rel=0.3)


def test_what_is_due_later_is_worth_keeping_though_nothing_happens_now() -> None:
    survival = model()
    late, never = survival.kind_of((0, 0)), survival.kind_of((1, 1))
    due = age_of(20.0)
    for _ in range(60):
        for age in range(due + 1):
            width = EDGES[age + 1] - EDGES[age]
            survival.note_exposure(late, age, 400 * width)
            survival.note_exposure(never, age, 400 * width)
        survival.note_event(late, due, 300.0)
        survival.fit(0.9)
    assert survival.worth(late, 0) > 5 * survival.worth(never, 0)


def test_it_follows_a_load_that_changes() -> None:
    survival = model()
    kind = survival.kind_of((0, 0))
    for turn in range(30):
        observe(survival, (0, 0), 1.0, turn)
        survival.fit(0.8)
    before = survival.worth(kind, 1)
    for turn in range(30):
        observe(survival, (0, 0), 0.01, turn)
        survival.fit(0.8)
    assert survival.worth(kind, 1) < before / 20


@pytest.mark.parametrize("seed", range(10))
def test_any_history_leaves_it_finite(seed: int) -> None:
    dice = Random(seed)  # noqa: S311 -- a test's dice
    survival = model()
    for _ in range(30):
        kind = survival.kind_of((dice.randrange(FACES), dice.randrange(FACES)))
        for _ in range(20):
            survival.note_event(kind, dice.randrange(NUM_AGES), 10 ** dice.uniform(-3, 6))
            survival.note_exposure(
                kind, dice.randrange(NUM_AGES), 10 ** dice.uniform(-3, 9)
            )
        survival.fit(dice.choice([1.0, 0.5]))
    values = [survival.worth(k, a) for k in range(survival.num_kinds) for a in range(26)]
    assert np.isfinite(values).all()
    assert min(values) > 0


def test_a_fit_of_nothing_changes_nothing() -> None:
    survival = model()
    survival.fit(1.0)
    kind = survival.kind_of((0, 0))
    before = [survival.worth(kind, age) for age in range(NUM_AGES)]
    survival.fit(1.0)
    assert [survival.worth(kind, age) for age in range(NUM_AGES)] == pytest.approx(before)
