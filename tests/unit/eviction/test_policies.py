"""What every policy of the registry must do."""

import dataclasses
import math

import pytest

from prefold.errors import ConfigError
from prefold.eviction.cost import PrefillCost
from prefold.eviction.policy import EvictionPolicy, LeafFacts
from prefold.eviction.registry import POLICIES, check_policy, make_policy

FACTS = LeafFacts(
    created_at=1.0, last_used_at=5.0, num_hits=2, num_blocks=3, depth_tokens=64
)
NOW = 10.0


def make(name: str) -> EvictionPolicy:
    return make_policy(name, PrefillCost(), 16)


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
        assert math.isfinite(rank.score)
        assert rank.until > FACTS.last_used_at + age


@pytest.mark.parametrize("name", POLICIES)
def test_later_use_is_never_evicted_sooner_while_nothing_is_known(name: str) -> None:
    policy = make(name)
    later = dataclasses.replace(FACTS, last_used_at=9.0)
    assert policy.rank(FACTS, NOW).score <= policy.rank(later, NOW).score


@pytest.mark.parametrize("name", POLICIES)
def test_more_hits_are_never_evicted_sooner_while_nothing_is_known(name: str) -> None:
    policy = make(name)
    more = dataclasses.replace(FACTS, num_hits=9)
    assert policy.rank(FACTS, NOW).score <= policy.rank(more, NOW).score


@pytest.mark.parametrize("name", POLICIES)
def test_any_history_leaves_ranks_numbers(name: str) -> None:
    policy = make(name)
    now = 0.0
    for index in range(300):
        now += (index % 7) * 10.0 ** (index % 5 - 2)
        facts = dataclasses.replace(
            FACTS, last_used_at=now / 2, num_hits=index % 4, num_new_tokens=index * 50
        )
        rank = policy.rank(facts, now)
        assert math.isfinite(rank.score)
        if index % 3:
            policy.note_hit(facts, now)
        else:
            policy.note_eviction(facts, rank.score, now)


def test_lru_looks_at_the_last_use_only() -> None:
    policy = make("lru")
    much_used = dataclasses.replace(FACTS, num_hits=99, created_at=4.0, last_used_at=4.0)
    assert policy.rank(much_used, NOW) < policy.rank(FACTS, NOW)


def test_lfu_looks_at_the_hits_and_ages() -> None:
    policy = make("lfu")
    seldom = dataclasses.replace(FACTS, num_hits=1, last_used_at=9.0)
    often = dataclasses.replace(FACTS, num_hits=5, last_used_at=1.0)
    assert policy.rank(seldom, NOW) < policy.rank(often, NOW)
    before = policy.rank(often, NOW)
    policy.note_eviction(seldom, 7.0, NOW)
    # What became idle before is overtaken by what is used since.
    assert before < policy.rank(seldom, NOW)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lru'"):
        make("lur")


def test_an_unknown_name_far_from_all_names_all() -> None:
    with pytest.raises(ConfigError, match="known: lfu, lru"):
        check_policy("xyzzy")
