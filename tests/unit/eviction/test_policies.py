"""What every policy of the registry must do."""

import dataclasses
import math

import pytest

from prefold.errors import ConfigError
from prefold.eviction.cost import PrefillCost
from prefold.eviction.policy import EvictionPolicy, LeafFacts, Rank
from prefold.eviction.registry import POLICIES, check_policy, make_policy

FACTS = LeafFacts(created_at=1.0, last_used_at=5.0, num_hits=2, num_blocks=3, depth=64)
NOW = 10.0


def make(name: str) -> EvictionPolicy:
    return make_policy(name, PrefillCost(), 100)


def before(policy: EvictionPolicy, one: LeafFacts, other: LeafFacts) -> bool:
    """Whether ``one`` goes before ``other``."""
    first, second = policy.rank(one, NOW), policy.rank(other, NOW)
    return (policy.worth(first.shelf), first.order) < (
        policy.worth(second.shelf),
        second.order,
    )


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_knows_its_name(name: str) -> None:
    assert make(name).name == name


@pytest.mark.parametrize("name", POLICIES)
def test_equal_facts_have_equal_ranks(name: str) -> None:
    policy = make(name)
    assert policy.rank(FACTS, NOW) == policy.rank(dataclasses.replace(FACTS), NOW)


@pytest.mark.parametrize("name", POLICIES)
def test_a_rank_is_a_number_and_holds_for_a_while(name: str) -> None:
    policy = make(name)
    for age in (0.0, 1e-9, 1.0, 1e4, 1e9):
        rank = policy.rank(FACTS, FACTS.last_used_at + age)
        assert math.isfinite(policy.worth(rank.shelf))
        assert math.isfinite(rank.order)
        assert rank.until > FACTS.last_used_at + age


@pytest.mark.parametrize("name", POLICIES)
def test_on_one_shelf_who_goes_sooner_has_no_later_time(name: str) -> None:
    policy = make(name)
    ranks = [
        policy.rank(dataclasses.replace(FACTS, last_used_at=at / 10), NOW)
        for at in range(100)
    ]
    for one in ranks:
        for other in ranks:
            if one.shelf == other.shelf and one.order < other.order:
                assert one.until <= other.until


@pytest.mark.parametrize("name", POLICIES)
def test_later_use_is_never_evicted_sooner_while_nothing_is_known(name: str) -> None:
    policy = make(name)
    later = dataclasses.replace(FACTS, last_used_at=9.0)
    assert not before(policy, later, FACTS)


@pytest.mark.parametrize("name", POLICIES)
def test_more_hits_are_never_evicted_sooner_while_nothing_is_known(name: str) -> None:
    policy = make(name)
    more = dataclasses.replace(FACTS, num_hits=9)
    assert not before(policy, more, FACTS)


def test_lru_looks_at_the_last_use_only() -> None:
    much_used = dataclasses.replace(FACTS, num_hits=99, created_at=4.0, last_used_at=4.0)
    assert before(make("lru"), much_used, FACTS)


def test_lfu_looks_at_the_hits_and_ages() -> None:
    policy = make("lfu")
    seldom = dataclasses.replace(FACTS, num_hits=1, last_used_at=9.0)
    often = dataclasses.replace(FACTS, num_hits=5, last_used_at=1.0)
    assert before(policy, seldom, often)
    old = policy.rank(often, NOW)
    policy.note_eviction(Rank(None, 7.0), None, 1, NOW)
    # What became idle before is overtaken by what is used since.
    assert old < policy.rank(seldom, NOW)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lru'"):
        make("lur")


def test_an_unknown_name_far_from_all_names_all() -> None:
    with pytest.raises(ConfigError, match="known: lfu, lru, value"):
        check_policy("xyzzy")
