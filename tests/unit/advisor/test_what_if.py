"""The meter: measured at the cache's own size, estimated around it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from prefold.advisor.path_marks import path_marks
from prefold.advisor.what_if import FACTORS, WhatIf, WhatIfMeter
from prefold.blocks.table import TOKEN_DTYPE
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit

BLOCK = 16
COST = CostFit(per_step=1.0, per_token=0.001, per_pair=0.00001)


def serve(meter: WhatIfMeter, block_ids: list[int], num_hit_tokens: int = 0) -> None:
    """Note a prompt of these blocks and the one token that is always computed."""
    marks = path_marks(np.array(block_ids, dtype=TOKEN_DTYPE), seed=1)
    meter.note_query(
        marks,
        num_kept=len(marks),
        num_prompt_tokens=BLOCK * len(marks) + 1,
        num_hit_tokens=num_hit_tokens,
    )
    meter.check_invariants()


def rates(found: WhatIf) -> dict[float, float]:
    return {point.factor: point.hit_rate for point in found.points}


def four_in_turn(num_hit_tokens: int = 0) -> WhatIfMeter:
    """Return what has seen four prompts of four blocks, ten times in turn.

    They need 16 blocks, twice what there is: LRU hits nothing in less.
    """
    meter = WhatIfMeter(num_blocks=8, block_size=BLOCK)
    for _ in range(10):
        for prompt in range(4):
            serve(meter, [10 * prompt + at for at in range(4)], num_hit_tokens)
    return meter


def test_before_any_request_all_is_zero() -> None:
    found = WhatIfMeter(num_blocks=8, block_size=BLOCK).read(COST)
    assert (found.num_requests, found.num_sampled, found.sample_rate) == (0, 0, 1.0)
    assert [point.factor for point in found.points] == list(FACTORS)
    assert [point.num_blocks for point in found.points] == [4, 8, 16, 32]
    for point in found.points:
        assert (point.hit_rate, point.saved_s, point.saved_share) == (0, 0, 0)


def test_a_working_set_of_twice_the_size_hits_from_there_on() -> None:
    found = four_in_turn().read(COST)
    assert found.num_requests == 40
    expected = 36 * 64 / (40 * 65)
    assert rates(found) == pytest.approx({0.5: 0, 1: 0, 2: expected, 4: expected})


def test_the_own_size_is_what_was_measured() -> None:
    # A policy that keeps half of it all the time.
    found = rates(four_in_turn(num_hit_tokens=32).read(COST))
    measured, most = 32 / 65, 36 * 64 / (40 * 65)
    assert found[1.0] == pytest.approx(measured)
    # LRU has nothing more to gain beyond twice the size, and nothing at half of it.
    assert found[0.5] == pytest.approx(measured)
    assert found[2.0] == found[4.0] == pytest.approx(most)


def test_a_loss_stays_a_loss_at_larger_sizes() -> None:
    # Whatever keeps it from hitting at all, such as expiry, is not a lack of room.
    meter = WhatIfMeter(num_blocks=64, block_size=BLOCK)
    for _ in range(10):
        serve(meter, [1, 2, 3, 4])
    found = meter.read(COST)
    assert rates(found) == dict.fromkeys(FACTORS, 0.0)


def test_more_is_never_less() -> None:
    meter = WhatIfMeter(num_blocks=8, block_size=BLOCK)
    rng = np.random.default_rng(2)
    for number in range(300):
        start = int(rng.integers(6))
        length = int(rng.integers(1, 5))
        serve(meter, [start, *range(10 * number, 10 * number + length)], BLOCK * length)
    found = meter.read(COST)
    for smaller, larger in pairwise(found.points):
        assert smaller.hit_rate <= larger.hit_rate
        assert smaller.saved_s <= larger.saved_s
        assert smaller.saved_share <= larger.saved_share <= 1


def test_saved_seconds_count_each_token_at_its_depth() -> None:
    found = four_in_turn().read(COST)
    twice = found.points[2]
    assert twice.saved_s == pytest.approx(36 * COST.saved_s(0, 64))
    assert twice.saved_share == pytest.approx(
        36 * COST.saved_s(0, 64) / (40 * COST.saved_s(0, 65))
    )
    assert found.has_cost


def test_without_a_cost_there_are_no_seconds_and_tokens_count_alike() -> None:
    found = four_in_turn().read(None)
    assert not found.has_cost
    for point in found.points:
        assert point.saved_s == 0
        assert point.saved_share == pytest.approx(point.hit_rate)


def test_reset_forgets_everything() -> None:
    meter = four_in_turn(num_hit_tokens=16)
    meter.reset()
    assert meter.read(COST) == WhatIfMeter(num_blocks=8, block_size=BLOCK).read(COST)


def test_what_looks_nothing_up_is_there_for_others() -> None:
    meter = WhatIfMeter(num_blocks=8, block_size=BLOCK)
    marks = path_marks(np.array([1, 2], dtype=TOKEN_DTYPE), seed=1)
    meter.note_use(marks, num_kept=2)
    assert meter.read(COST).num_requests == 0
    serve(meter, [1, 2], 32)
    assert rates(meter.read(COST)) == pytest.approx(dict.fromkeys(FACTORS, 32 / 33))


@pytest.mark.parametrize(
    ("num_prompt", "num_hit", "num_kept"),
    [(16, 17, 1), (16, -1, 1), (40, 0, 1), (16, 0, 2)],
)
def test_what_cannot_be_is_refused(num_prompt: int, num_hit: int, num_kept: int) -> None:
    meter = WhatIfMeter(num_blocks=8, block_size=BLOCK)
    with pytest.raises(InvalidInputError):
        meter.note_query(
            path_marks(np.array([1], dtype=TOKEN_DTYPE), seed=1),
            num_kept=num_kept,
            num_prompt_tokens=num_prompt,
            num_hit_tokens=num_hit,
        )


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (8, 0)])
def test_a_cache_of_nothing_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(InvalidInputError, match="a cache has blocks"):
        WhatIfMeter(num_blocks=num_blocks, block_size=block_size)
