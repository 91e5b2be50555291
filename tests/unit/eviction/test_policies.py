"""What every policy of the registry must do."""

import dataclasses

import pytest

from prefold.errors import ConfigError
from prefold.eviction.policy import LeafFacts
from prefold.eviction.registry import POLICIES, make_policy

FACTS = LeafFacts(
    created_at=1.0, last_used_at=5.0, num_hits=2, num_blocks=3, depth_tokens=64
)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_knows_its_name(name: str) -> None:
    assert make_policy(name).name == name


@pytest.mark.parametrize("name", POLICIES)
def test_equal_facts_have_equal_scores(name: str) -> None:
    policy = make_policy(name)
    assert policy.score(FACTS) == policy.score(dataclasses.replace(FACTS))


@pytest.mark.parametrize("name", POLICIES)
def test_later_use_is_never_evicted_sooner(name: str) -> None:
    policy = make_policy(name)
    later = dataclasses.replace(FACTS, last_used_at=9.0)
    assert policy.score(FACTS) <= policy.score(later)


def test_lru_looks_at_the_last_use_only() -> None:
    policy = make_policy("lru")
    much_used = dataclasses.replace(FACTS, num_hits=99, created_at=4.0, last_used_at=4.0)
    assert policy.score(much_used) < policy.score(FACTS)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'lru'"):
        make_policy("lur")


def test_an_unknown_name_far_from_all_names_all() -> None:
    with pytest.raises(ConfigError, match="known: lru"):
        make_policy("xyzzy")
