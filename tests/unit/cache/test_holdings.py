"""Holdings: block-seconds by account, and prefixes that are cached now."""

from __future__ import annotations

import pytest

from prefold.cache import QuotaSettings, Share
from prefold.cache.holdings import Holdings, take_holdings
from prefold.identity.domain import Domain
from support.cache_driver import CacheDriver, numbered
from support.settable_clock import SettableClock

B = 4
TEAM = Domain("team")
ALICE, BOB = Domain("team/alice"), Domain("team/bob")
QUOTAS = QuotaSettings(shares=(Share(domain=ALICE), Share(domain=BOB)))


@pytest.fixture
def driver() -> CacheDriver:
    return CacheDriver(clock=SettableClock(), quotas=QUOTAS, shares=True)


def wait(driver: CacheDriver, seconds: float) -> None:
    assert isinstance(driver.clock, SettableClock)
    driver.clock.advance(seconds)


def taken(driver: CacheDriver, max_prefixes: int = 100) -> Holdings:
    driver.check()
    return take_holdings(driver.cache.room, driver.clock(), max_prefixes=max_prefixes)


def owed(driver: CacheDriver) -> dict[str | None, float]:
    its = taken(driver).by_account
    return {name: block_s for name, block_s in its.items() if block_s}


def test_blocks_are_owed_from_when_they_are_published(driver: CacheDriver) -> None:
    driver.serve(numbered(2 * B + 1), domain=ALICE)
    assert owed(driver) == {}
    wait(driver, 10)
    # Two full blocks and a partial one.
    assert owed(driver) == {"team/alice": 30.0}
    driver.serve(numbered(B, start=50), domain=BOB)
    wait(driver, 5)
    assert owed(driver) == {"team/alice": 45.0, "team/bob": 5.0}
    assert taken(driver).block_s == 50.0


def test_what_was_evicted_is_owed_no_longer(driver: CacheDriver) -> None:
    driver.serve(numbered(4 * B), domain=ALICE)
    wait(driver, 10)
    driver.fill(64)
    assert owed(driver) == {"team/alice": 40.0}
    wait(driver, 10)
    assert owed(driver) == {"team/alice": 40.0}


def test_an_approved_prefix_is_owed_by_those_who_use_it(driver: CacheDriver) -> None:
    prefix = numbered(4 * B)
    driver.approve(prefix, TEAM)
    wait(driver, 10)
    assert owed(driver) == {None: 40.0}
    driver.serve([*prefix, 900], domain=ALICE)
    wait(driver, 10)
    # Besides, she has a partial block of her own.
    assert owed(driver) == {None: 40.0, "team/alice": 40.0 + 10.0}
    driver.serve([*prefix[: 2 * B], 901], domain=BOB)
    wait(driver, 10)
    # Half of what both use, and all of what only one does.
    assert owed(driver) == {
        None: 40.0,
        "team/alice": 50.0 + 10.0 + 20.0 + 10.0,
        "team/bob": 10.0 + 10.0,
    }
    assert taken(driver).block_s == 40.0 + 90.0 + 20.0


def test_prefixes_have_their_own_blocks_only(driver: CacheDriver) -> None:
    shared = numbered(2 * B)
    driver.serve([*shared, *numbered(B, start=100)], domain=ALICE)
    wait(driver, 10)
    driver.serve([*shared, *numbered(B, start=200)], domain=ALICE)
    wait(driver, 10)
    its = taken(driver).prefixes
    assert {(it.start, it.end, it.num_hits, it.block_s) for it in its} == {
        (0, 2 * B, 1, 40.0),
        (2 * B, 3 * B, 0, 20.0),
        (2 * B, 3 * B, 0, 10.0),
    }
    assert sum(it.block_s for it in its) == taken(driver).block_s
    assert {it.domain for it in its} == {"team/alice"}


def test_a_run_that_grew_counts_each_block_from_its_own_time(driver: CacheDriver) -> None:
    run = driver.begin(numbered(2 * B), ALICE)
    driver.compute(run)
    wait(driver, 10)
    driver.extend(run, numbered(2 * B, start=100))
    driver.end(run)
    wait(driver, 10)
    [it] = taken(driver).prefixes
    assert (it.num_blocks, it.age_s) == (4, 20.0)
    assert it.block_s == pytest.approx(2 * 20 + 2 * 10)
    assert taken(driver).block_s == pytest.approx(it.block_s)


def test_the_listing_is_bounded(driver: CacheDriver) -> None:
    for number in range(5):
        driver.serve(numbered(B, start=100 * number), domain=ALICE)
    assert not taken(driver, 3).is_complete
    assert len(taken(driver, 3).prefixes) == 3
    assert taken(driver, 5).is_complete
