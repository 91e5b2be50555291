import dataclasses

import pytest

from prefold.errors import InvariantError
from prefold.eviction.cost import CostFit, PrefillCost
from prefold.eviction.policy import LeafFacts, Rank
from prefold.eviction.value import REMEMBERED, Value
from prefold.tree.account import Account
from prefold.tree.cohort import Cohort, Request, Use

REQUEST = Request(
    turn=0,
    is_fork=False,
    num_new_tokens=100,
    num_reply_tokens=50,
    gap_s=None,
)
ACCOUNT = Account("all", num_reserved=0, max_idle=100)
RANK = Rank(None, 0.0)


def make(num_blocks: int = 100, cost: PrefillCost | None = None) -> Value:
    return Value(cost or PrefillCost(), num_blocks)


def cohort(value: Value, at: float, *, num_blocks: int = 4, turn: int = 0) -> Cohort:
    kind = value.kind_of(dataclasses.replace(REQUEST, turn=turn), 0, None)
    made = Cohort(Use(at, turn, 100), ACCOUNT, kind)
    made.join(num_blocks)
    value.note_uses([made], at)
    value.check_invariants()
    return made


def worth(value: Value, kind: int, age: float, depth: int = 0) -> float:
    facts = LeafFacts(
        created_at=0.0,
        last_used_at=0.0,
        num_hits=0,
        num_blocks=1,
        depth=depth,
        kind=kind,
    )
    return value.worth(value.rank(facts, age).shelf)


def kinds(value: Value, *uses: dict[str, object]) -> list[int]:
    return [value.kind_of(dataclasses.replace(REQUEST, **each), 0, None) for each in uses]  # type: ignore[arg-type]


def test_what_differs_in_a_feature_is_another_kind() -> None:
    value = make()
    found = kinds(
        value,
        {},
        {"is_fork": True},
        {"turn": 1, "gap_s": 5.0},
        {"turn": 2, "gap_s": 5.0},
        {"turn": 2, "gap_s": 50.0},
        {"num_new_tokens": 5000},
        {"num_reply_tokens": 5000},
    )
    assert len(set(found)) == len(found)
    assert value.kind_of(REQUEST, 1, 3.0) != value.kind_of(REQUEST, 100, 3.0)
    assert value.kind_of(REQUEST, 1, 3.0) != value.kind_of(REQUEST, 1, 300.0)


def test_what_several_requests_begin_with_is_known_by_that_alone() -> None:
    value = make()
    other = dataclasses.replace(REQUEST, turn=5, num_new_tokens=9000, num_reply_tokens=900)
    assert value.kind_of(REQUEST, 3, 10.0) == value.kind_of(other, 3, 10.0)


@pytest.mark.parametrize("number", [0, 1, 255, 256, 10**9])
def test_no_number_is_too_large_for_a_feature(number: int) -> None:
    value = make()
    use = dataclasses.replace(
        REQUEST,
        turn=number,
        num_new_tokens=number,
        num_reply_tokens=number,
        gap_s=float(number),
    )
    for kind in (value.kind_of(use, 0, None), value.kind_of(use, number, float(number))):
        assert worth(value, kind, float(number)) > 0


def test_it_learns_which_kind_comes_back() -> None:
    value = make()
    for index in range(700):
        now = 20.0 * index
        comes_back = cohort(value, now, turn=1)
        cohort(value, now + 1, turn=3)
        value.note_reuse(comes_back, comes_back.num_live, now + 10)
        assert comes_back.num_live == 0
    comes_back_kind, goes_kind = kinds(value, {"turn": 1}, {"turn": 3})
    assert worth(value, comes_back_kind, 5.0) > 10 * worth(value, goes_kind, 5.0)


def test_what_was_evicted_and_is_asked_for_counts_as_much_as_what_was_kept() -> None:
    kept, evicted = make(), make()
    for value in (kept, evicted):
        for index in range(400):
            now = 20.0 * index
            its = cohort(value, now, turn=1)
            if value is evicted:
                value.note_eviction(RANK, its, 4, now + 1)
                value.note_lost_reuse(its, 4, now + 10)
            else:
                value.note_reuse(its, 4, now + 10)
            value.check_invariants()
    [kind] = kinds(kept, {"turn": 1})
    assert worth(evicted, kind, 5.0) == pytest.approx(worth(kept, kind, 5.0))


def test_a_bounded_number_of_evicted_blocks_is_remembered() -> None:
    value = make(num_blocks=10)
    made = []
    for index in range(100):
        its = cohort(value, float(index))
        value.note_eviction(RANK, its, 4, float(index))
        value.check_invariants()
        made.append(its)
    assert value._num_lost <= REMEMBERED * 10
    assert made[0].num_lost == 0
    assert made[0].num_live == 0
    assert made[-1].num_lost == 4
    value.note_lost_reuse(made[0], 4, 200.0)
    assert made[0].num_live == 0


def test_blocks_without_a_history_are_ranked_and_evicted_as_well() -> None:
    value = make()
    facts = LeafFacts(
        created_at=0.0, last_used_at=0.0, num_hits=0, num_blocks=1, depth=0, kind=None
    )
    rank = value.rank(facts, 5.0)
    assert value.worth(rank.shelf) > 0
    value.note_eviction(rank, None, 1, 5.0)
    value.check_invariants()


def test_a_deep_block_is_worth_more_only_once_that_is_measured() -> None:
    cost = PrefillCost()
    value = make(cost=cost)
    [kind] = kinds(value, {})
    assert worth(value, kind, 1.0, 0) == worth(value, kind, 1.0, 16_384)
    cost.assume(CostFit(per_step=0.0, per_token=1e-3, per_pair=1e-3 / 8192))
    ratio = worth(value, kind, 1.0, 16_384) / worth(value, kind, 1.0, 0)
    assert ratio == pytest.approx(3.0, rel=0.01)


def test_the_clock_may_stand_still_and_may_jump() -> None:
    value = make()
    for now in (0.0, 0.0, 1e-9, 1e6, 1e6, 1e12):
        its = cohort(value, now)
        value.note_reuse(its, 1, now)
        value.check_invariants()


def test_cohorts_out_of_order_are_found() -> None:
    value = make()
    cohort(value, 5.0)
    value._by_age[0].append(Cohort(Use(0.0, 0, 1), ACCOUNT, 0))
    with pytest.raises(InvariantError, match="order of their age"):
        value.check_invariants()


def test_lost_blocks_that_do_not_add_up_are_found() -> None:
    value = make()
    value.note_eviction(RANK, cohort(value, 5.0), 2, 6.0)
    value._num_lost += 1
    with pytest.raises(InvariantError, match="do not add up"):
        value.check_invariants()
