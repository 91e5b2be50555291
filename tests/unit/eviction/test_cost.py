from random import Random

import numpy as np
import pytest

from prefold.errors import InvariantError
from prefold.eviction.cost import (
    MIN_STEPS,
    NUM_STEPS,
    PRIOR,
    CostFit,
    PrefillCost,
    fit_steps,
    num_pairs,
)

Step = tuple[float, int, float]
TRUE = CostFit(per_step=3e-3, per_token=2e-4, per_pair=4e-9)


def steps(num_steps: int, seed: int, *, noise: float = 0.0) -> list[Step]:
    dice = Random(seed)  # noqa: S311 -- a test
    made = []
    for _ in range(num_steps):
        num_tokens = dice.randint(20, 512)
        start = dice.randint(0, 16_000)
        pairs = num_pairs(start, start + num_tokens)
        seconds = TRUE.per_step + TRUE.per_token * num_tokens + TRUE.per_pair * pairs
        made.append((seconds * (1 + noise * dice.uniform(-1, 1)), num_tokens, pairs))
    return made


def learn(observed: list[Step]) -> PrefillCost:
    cost = PrefillCost()
    for each in observed:
        cost.note_step(*each)
        cost.check_invariants()
    return cost


def as_array(fit: CostFit) -> list[float]:
    return [fit.per_step, fit.per_token, fit.per_pair]


def test_pairs_are_counted() -> None:
    for start in range(6):
        for end in range(start, 8):
            assert num_pairs(start, end) == sum(range(start, end))


def test_exact_steps_are_fitted_exactly() -> None:
    fit = learn(steps(64, 1)).fit
    assert fit is not None
    assert as_array(fit) == pytest.approx(as_array(TRUE), rel=1e-6)


def test_a_fifth_of_wild_outliers_changes_little() -> None:
    dice = Random(7)  # noqa: S311 -- a test
    observed = [
        (seconds * (dice.uniform(5, 50) if dice.random() < 0.2 else 1.0), tokens, pairs)
        for seconds, tokens, pairs in steps(NUM_STEPS, 2, noise=0.02)
    ]
    fit = learn(observed).fit
    assert fit is not None
    assert fit.per_token == pytest.approx(TRUE.per_token, rel=0.1)
    assert fit.saved_s(0, 8192) == pytest.approx(TRUE.saved_s(0, 8192), rel=0.1)
    # Plain least squares is far away, so that this shows something.
    columns = np.array([[1.0, tokens, pairs] for _, tokens, pairs in observed])
    plain = np.linalg.lstsq(columns, np.array([s for s, _, _ in observed]), rcond=None)[0]
    assert plain[1] != pytest.approx(TRUE.per_token, rel=0.5)


def test_it_follows_a_machine_that_became_slower() -> None:
    cost = learn(steps(NUM_STEPS, 3))
    for seconds, tokens, pairs in steps(NUM_STEPS, 4):
        cost.note_step(3 * seconds, tokens, pairs)
    assert cost.fit is not None
    assert cost.fit.per_token == pytest.approx(3 * TRUE.per_token, rel=1e-3)


def test_there_is_no_fit_before_there_are_steps_of_prefill() -> None:
    cost = PrefillCost()
    for _ in range(50):
        cost.note_step(0.01, 8, 8.0)
    assert cost.fit is None
    assert cost.saved_ms(0, 100) is None
    assert cost.model is PRIOR
    observed = steps(MIN_STEPS, 5)
    for each in observed[:-1]:
        cost.note_step(*each)
        assert cost.fit is None
    cost.note_step(*observed[-1])
    assert cost.fit is not None


def test_a_hit_is_worth_the_blocks_it_is_made_of_and_deep_blocks_are_worth_more() -> None:
    cost = learn(steps(64, 6))
    whole = cost.saved_ms(0, 4096)
    parts = [cost.saved_ms(at, at + 16) for at in range(0, 4096, 16)]
    assert whole is not None
    assert whole == pytest.approx(sum(each or 0.0 for each in parts))
    assert (parts[-1] or 0.0) > (parts[0] or 0.0) > 0.0


@pytest.mark.parametrize("seed", range(20))
def test_no_history_makes_computing_give_time_back(seed: int) -> None:
    dice = Random(seed)  # noqa: S311 -- a test
    observed = [
        (dice.uniform(1e-4, 1.0), dice.randint(17, 600), dice.uniform(0, 1e7))
        for _ in range(dice.randint(MIN_STEPS, 100))
    ]
    fit = fit_steps(np.array(observed))
    assert min(as_array(fit)) >= 0
    assert all(np.isfinite(as_array(fit)))


def test_steps_that_are_all_alike_are_fitted() -> None:
    fit = fit_steps(np.array([(0.5, 100.0, 4950.0)] * 10))
    total = fit.per_step + fit.per_token * 100 + fit.per_pair * 4950
    assert total == pytest.approx(0.5)


def test_a_negative_cost_is_found() -> None:
    cost = PrefillCost()
    cost._fit = CostFit(per_step=0.0, per_token=-1.0, per_pair=0.0)
    with pytest.raises(InvariantError, match="negative"):
        cost.check_invariants()
