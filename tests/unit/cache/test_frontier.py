"""Running sequences that will publish what a later prompt shares with them."""

import pytest

from prefold.cache import (
    NO_CACHE,
    Access,
    ByDomain,
    Everything,
    FrontierMatch,
)
from prefold.cache.frontier import MAX_OWNERS, Frontiers
from prefold.errors import InvariantError
from prefold.identity.domain import Domain
from support.cache_driver import A, CacheDriver, numbered
from support.running import Running

B = 4
COMMON = numbered(5 * B)


@pytest.fixture
def driver() -> CacheDriver:
    return CacheDriver(num_blocks=200, block_size=B)


def begin(driver: CacheDriver, common: int, number: int) -> Running:
    return driver.begin([*COMMON[:common], *numbered(9, 100 * number)])


def waiting_for(driver: CacheDriver, domain: Domain = A) -> FrontierMatch | None:
    return driver.lookup([*COMMON, 999], domain).frontier


def test_an_owner_is_found_with_all_that_both_have(driver: CacheDriver) -> None:
    run = begin(driver, 11, 1)
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is run.lease
    assert found.num_common_tokens == 11


def test_the_last_token_of_a_prompt_is_no_common_one(driver: CacheDriver) -> None:
    driver.begin(COMMON)
    found = driver.lookup(COMMON).frontier
    assert found is not None
    assert found.num_common_tokens == len(COMMON) - 1


def test_the_one_with_the_longest_agreement_is_taken(driver: CacheDriver) -> None:
    runs = [begin(driver, common, common) for common in (6, 13, 9)]
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is runs[1].lease
    assert found.num_common_tokens == 13


def test_less_than_a_common_block_is_not_worth_waiting(driver: CacheDriver) -> None:
    begin(driver, B - 1, 1)
    assert waiting_for(driver) is None


def test_a_sequence_without_a_whole_pending_block_is_none(driver: CacheDriver) -> None:
    driver.begin(COMMON[: B - 1])
    assert waiting_for(driver) is None


def test_other_domains_do_not_wait(driver: CacheDriver) -> None:
    begin(driver, 11, 1)
    assert waiting_for(driver, Domain("b")) is None
    assert waiting_for(driver, Domain("a/b")) is None
    assert waiting_for(driver, Domain("a", salt=b"s")) is None


def test_who_does_not_read_does_not_wait(driver: CacheDriver) -> None:
    run = begin(driver, 11, 1)
    seen = driver.cache.lookup(driver.fingerprint, A, run.array, access=NO_CACHE)
    assert seen.frontier is None


@pytest.mark.parametrize("access", [NO_CACHE, Access(read=True, write=False)])
def test_who_does_not_write_is_not_waited_for(driver: CacheDriver, access: Access) -> None:
    driver.begin(COMMON, access=access)
    assert waiting_for(driver) is None


def test_at_most_eight_are_listed_and_the_newest_is_dropped(driver: CacheDriver) -> None:
    runs = [begin(driver, B + n, 1 + n) for n in range(MAX_OWNERS + 1)]
    assert MAX_OWNERS == 8
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is runs[MAX_OWNERS - 1].lease
    assert runs[-1].lease.frontier_key is None


def test_a_commit_moves_the_owner_on(driver: CacheDriver) -> None:
    run = begin(driver, 14, 1)
    version = driver.cache.version(driver.fingerprint)
    driver.compute(run, 2 * B)
    assert driver.cache.version(driver.fingerprint) > version
    seen = driver.lookup([*COMMON, 999])
    assert seen.num_matched_tokens == 2 * B
    assert seen.frontier is not None
    assert seen.frontier.num_common_tokens == 14
    driver.compute(run, 3 * B)
    assert waiting_for(driver) is None, "its next block is another one"


def test_an_adoption_moves_the_owner_on(driver: CacheDriver) -> None:
    slow = driver.begin([*COMMON, *numbered(9, 700)])
    other = begin(driver, 2 * B, 2)
    driver.compute(other, 2 * B)
    driver.cache.adopt(slow.lease, slow.array, 0)
    driver.check()
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is slow.lease


def test_a_fork_is_waited_for_like_its_parent(driver: CacheDriver) -> None:
    run = driver.begin(COMMON)
    [fork] = driver.fork(run, 1)
    driver.end(run)
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is fork.lease


def test_a_release_takes_the_owner_out(driver: CacheDriver) -> None:
    run = begin(driver, 11, 1)
    version = driver.cache.version(driver.fingerprint)
    driver.end(run)
    assert driver.cache.version(driver.fingerprint) > version
    assert waiting_for(driver) is None


def test_the_second_is_found_once_the_first_is_gone(driver: CacheDriver) -> None:
    first, second = begin(driver, 13, 1), begin(driver, 11, 2)
    driver.end(first)
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is second.lease


@pytest.mark.parametrize("selector", [Everything(), ByDomain(domain=A)])
def test_an_invalidation_takes_owners_out(
    driver: CacheDriver, selector: Everything | ByDomain
) -> None:
    begin(driver, 11, 1)
    driver.cache.invalidate(selector)
    driver.check()
    assert waiting_for(driver) is None
    new = begin(driver, 11, 2)
    found = waiting_for(driver)
    assert found is not None
    assert found.owner is new.lease


# Every line of check_invariants.


def test_a_lease_that_is_not_listed_is_found(driver: CacheDriver) -> None:
    run = begin(driver, 11, 1)
    with pytest.raises(InvariantError, match="disagree"):
        Frontiers().check_invariants([run.lease])


def test_a_frontier_behind_its_lease_is_found(driver: CacheDriver) -> None:
    run = begin(driver, 11, 1)
    run.lease.num_published += 1
    with pytest.raises(InvariantError, match="not where its lease ends"):
        driver.cache._frontiers.check_invariants([run.lease])


def test_a_released_owner_is_found(driver: CacheDriver) -> None:
    run = begin(driver, 11, 1)
    run.lease.is_released = True
    with pytest.raises(InvariantError, match="not where its lease ends"):
        driver.cache._frontiers.check_invariants([run.lease])
