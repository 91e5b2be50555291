"""The listing shows what can be found, within bounds, and changes nothing."""

from __future__ import annotations

import pytest

from prefold.cache import Everything, ListingBounds
from prefold.errors import InvalidInputError
from prefold.identity.domain import AudienceKind, Domain
from support.cache_driver import CacheDriver, numbered

ALL = ListingBounds(max_nodes=1000, max_depth=1000)


def test_an_empty_cache_lists_nothing() -> None:
    listing = CacheDriver().cache.listing(ALL)
    assert listing.runs == ()
    assert listing.num_nodes == 0
    assert listing.is_complete


def test_runs_are_listed_with_parents_first() -> None:
    driver = CacheDriver()
    shared = numbered(8)
    driver.serve([*shared, *numbered(8, 100)])
    driver.serve([*shared, *numbered(8, 200)])
    listing = driver.cache.listing(ALL)
    top, *rest = listing.runs
    assert (top.parent, top.depth, top.start, top.num_blocks) == (None, 1, 0, 2)
    assert top.token_ids.tolist() == shared
    assert top.num_children == len(rest) == 2
    for run in rest:
        assert (run.parent, run.depth, run.start, run.num_children) == (0, 2, 8, 0)
    assert {run.token_ids[0] for run in rest} == {100, 200}
    assert listing.is_complete
    assert listing.num_nodes == 3
    assert sum(run.num_blocks for run in listing.runs) == driver.cache.counts.idle


def test_a_partial_leaf_is_listed_as_one() -> None:
    driver = CacheDriver()
    driver.serve(numbered(6))
    whole, partial = driver.cache.listing(ALL).runs
    assert not whole.is_partial
    assert partial.is_partial
    assert (partial.parent, partial.num_tokens, partial.num_blocks) == (0, 2, 1)


def test_leases_and_hits_are_counted() -> None:
    driver = CacheDriver()
    tokens = numbered(12)
    driver.serve(tokens)
    run = driver.begin(tokens)
    listing = driver.cache.listing(ALL)
    assert [listed.num_leases for listed in listing.runs] == [1, 0]
    assert listing.runs[0].num_hits == 1
    driver.end(run)
    assert all(listed.num_leases == 0 for listed in driver.cache.listing(ALL).runs)


def test_a_salt_shows_only_that_it_is_there() -> None:
    driver = CacheDriver()
    salt = b"canary-salt"
    driver.serve(numbered(4), domain=Domain("acme/alice", salt=salt))
    [run] = driver.cache.listing(ALL).runs
    assert (run.domain, run.is_salted, run.kind) == ("acme/alice", True, AudienceKind.OWN)
    assert "canary" not in repr(run)


def test_a_representation_has_no_tokens() -> None:
    driver = CacheDriver()
    driver.serve(numbered(4, 987_650))
    assert "98765" not in repr(driver.cache.listing(ALL))


def test_token_ids_are_a_copy() -> None:
    driver = CacheDriver()
    driver.serve(numbered(4))
    [run] = driver.cache.listing(ALL).runs
    run.token_ids[:] = 7
    driver.check()
    assert driver.hit([*numbered(4), 9]) == 4


def test_what_was_invalidated_is_not_listed() -> None:
    driver = CacheDriver()
    driver.serve(numbered(8))
    driver.cache.invalidate(Everything())
    listing = driver.cache.listing(ALL)
    assert listing.runs == ()
    assert listing.is_complete


def test_bounds_cut_the_listing_and_say_so() -> None:
    driver = CacheDriver()
    for start in (100, 200, 300):
        driver.serve([*numbered(4), *numbered(4, start), *numbered(4, start + 50)])
    for bounds, num_runs in (
        (ListingBounds(max_nodes=1, max_depth=9), 1),
        (ListingBounds(max_nodes=9, max_depth=1), 1),
        (ListingBounds(max_nodes=3, max_depth=9), 3),
    ):
        listing = driver.cache.listing(bounds)
        assert len(listing.runs) == num_runs
        assert not listing.is_complete
        assert listing.num_nodes == 4


def test_listing_changes_nothing() -> None:
    driver = CacheDriver()
    driver.serve(numbered(12))
    before = driver.cache.snapshot(), driver.cache.version(driver.fingerprint)
    first = [run.num_hits for run in driver.cache.listing(ALL).runs]
    assert [run.num_hits for run in driver.cache.listing(ALL).runs] == first
    driver.check()
    assert (driver.cache.snapshot(), driver.cache.version(driver.fingerprint)) == before


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-1, 1)])
def test_bounds_below_one_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="must be at least 1"):
        ListingBounds(max_nodes=bounds[0], max_depth=bounds[1])
