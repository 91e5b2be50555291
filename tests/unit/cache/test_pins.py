"""Operators' pins: what they keep, what they leave alone, and what ends them."""

from __future__ import annotations

import pytest

from prefold.cache import (
    ByAge,
    ByDomain,
    ByFingerprint,
    ByPrefix,
    Everything,
    QuotaSettings,
    Selector,
    Share,
)
from prefold.errors import CapacityError, InvalidInputError, InvariantError
from prefold.identity.domain import PUBLIC, AudienceKind, Domain
from prefold.tree.retention import Retention
from support.cache_driver import A, CacheDriver, numbered
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.settable_clock import SettableClock

B = 4
PROMPT = numbered(4 * B)
OTHER = Domain("b")


def handle_of(driver: CacheDriver, tokens: list[int], domain: Domain = A) -> str:
    """Return the handle of the run that a prompt ends in."""
    found = driver.cache.browser.find_prefix(
        driver.fingerprint,
        as_tokens(tokens),
        domain=domain.path,
        limit=1,
        num_text_tokens=0,
    ).found
    return found[0].run.handle


def pin(driver: CacheDriver, tokens: list[int], domain: Domain = A, kept: int = 0) -> str:
    handle = handle_of(driver, tokens, domain)
    assert driver.cache.browser.pin(handle, kept)
    driver.check()
    return handle


def num_pinned(driver: CacheDriver) -> int:
    return driver.cache.approved.num_pinned_blocks


def test_what_is_pinned_is_not_evicted() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT)
    handle = pin(driver, PROMPT)
    assert num_pinned(driver) == 4
    driver.fill(12)
    assert driver.hit([*PROMPT, 1]) == 4 * B
    assert driver.cache.browser.unpin(handle)
    driver.check()
    assert num_pinned(driver) == 0
    driver.fill(16)
    assert driver.hit([*PROMPT, 1]) == 0


def test_a_pin_keeps_what_leads_to_it_and_not_what_goes_on() -> None:
    driver = CacheDriver(16)
    driver.serve([*PROMPT[: 2 * B], *numbered(B, 100)])
    driver.serve([*PROMPT[: 2 * B], *numbered(B, 200)])
    pin(driver, PROMPT[: 2 * B])
    driver.fill(14)
    assert driver.hit([*PROMPT[: 2 * B], *numbered(B, 100), 1]) == 2 * B


def test_a_run_is_pinned_once_however_often_it_is_asked() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT)
    handle = pin(driver, PROMPT)
    pin(driver, PROMPT)
    [run] = driver.cache.browser.children(None, limit=9, num_text_tokens=0).runs  # type: ignore[union-attr]
    assert (run.is_pinned, run.is_pin, run.num_leases) == (True, True, 0)
    assert driver.cache.browser.unpin(handle)
    assert not driver.cache.browser.unpin(handle)
    driver.check()


def test_a_pin_shares_nothing() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT, domain=A)
    pin(driver, PROMPT)
    for stranger in (OTHER, Domain("a/b"), Domain("a", b"salt"), PUBLIC):
        assert driver.hit([*PROMPT, 1], stranger) == 0


def test_pins_stay_within_their_budget() -> None:
    driver = CacheDriver(20, quotas=QuotaSettings(max_pinned=0.3))
    driver.serve(PROMPT)
    driver.serve(numbered(4 * B, 500))
    pin(driver, PROMPT)
    handle = handle_of(driver, numbered(4 * B, 500))
    with pytest.raises(
        CapacityError, match="8 of 20 blocks would be pinned, and at most 6"
    ):
        driver.cache.browser.pin(handle, 0)
    driver.check()
    assert num_pinned(driver) == 4
    with pytest.raises(CapacityError, match="at most 6"):
        driver.approve(numbered(3 * B, 900), label="more", pinned=True)


def test_a_pin_leaves_open_requests_what_they_need() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT)
    handle = handle_of(driver, PROMPT)
    with pytest.raises(CapacityError, match="needs up to 13"):
        driver.cache.browser.pin(handle, 13)
    assert driver.cache.browser.pin(handle, 12)


def test_what_somebody_pinned_cannot_be_counted_on_by_others() -> None:
    share = Share(domain=OTHER, reserved=0.25, maximum=0.5)
    driver = CacheDriver(20, quotas=QuotaSettings(shares=(share,)))
    driver.serve(PROMPT, domain=A)
    before = driver.cache.room.capacity(A, num_pinned(driver))
    pin(driver, PROMPT)
    assert driver.cache.room.capacity(A, num_pinned(driver)) == before - 4


def test_what_comes_idle_again_keeps_to_its_maximum() -> None:
    share = Share(domain=A, reserved=0.0, maximum=0.25)
    driver = CacheDriver(16, quotas=QuotaSettings(shares=(share,)))
    driver.serve(PROMPT)
    handle = pin(driver, PROMPT)
    driver.serve(numbered(4 * B, 500))
    assert driver.cache.browser.unpin(handle)
    driver.check()


def test_time_goes_on_while_it_is_pinned() -> None:
    clock = SettableClock(1_000.0)
    driver = CacheDriver(16, clock=clock)
    driver.serve(PROMPT, retention=Retention(ttl_s=10.0, priority=3))
    handle = pin(driver, PROMPT)
    clock.advance(20.0)
    driver.check()
    run = driver.cache.browser.run(handle, num_text_tokens=0)
    assert run is not None
    assert (run.expires_in_s, run.priority) == (0.0, 3)
    assert driver.cache.browser.unpin(handle)
    assert driver.hit([*PROMPT, 1]) == 0
    driver.check()


@pytest.mark.parametrize(
    "selector",
    [
        Everything(),
        ByDomain(domain=A),
        ByDomain(domain=PUBLIC),
        ByFingerprint(fingerprint=make_fingerprint(block_size=B)),
        ByPrefix(
            fingerprint=make_fingerprint(block_size=B),
            domain=A,
            tokens=as_tokens(PROMPT[:B]),
        ),
        ByAge(older_than_s=0.0),
    ],
    ids=lambda it: type(it).__name__,
)
def test_a_pin_ends_with_what_it_pins(selector: Selector) -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT)
    handle = pin(driver, PROMPT)
    receipt = driver.cache.invalidate(selector)
    driver.check()
    # A pin is no request: nobody uses them any more.
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (4, 0)
    assert num_pinned(driver) == 0
    assert not driver.cache.browser.unpin(handle)
    assert driver.hit([*PROMPT, 1]) == 0
    driver.fill(16)


def test_what_a_request_uses_besides_counts_as_used() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT)
    pin(driver, PROMPT)
    run = driver.begin([*PROMPT[: 2 * B], 900])
    receipt = driver.cache.invalidate(Everything())
    driver.check()
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (4, 2)
    driver.end(run)
    driver.check()


def test_a_pin_of_others_outlives_an_invalidation() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT, domain=A)
    driver.serve(PROMPT, domain=OTHER)
    pin(driver, PROMPT, A)
    driver.cache.invalidate(ByDomain(domain=OTHER))
    driver.check()
    assert num_pinned(driver) == 4
    driver.fill(12)
    assert driver.hit([*PROMPT, 1]) == 4 * B


@pytest.mark.parametrize("ttl_s", [None, 10.0])
def test_a_pin_of_an_approved_run_ends_with_its_approval(ttl_s: float | None) -> None:
    clock = SettableClock(1_000.0)
    driver = CacheDriver(32, clock=clock, shares=True)
    approval = driver.approve(PROMPT, A, ttl_s=ttl_s)
    pin(driver, PROMPT)
    driver.fill(28)
    assert driver.hit([*PROMPT, 1], Domain("a/b")) == 4 * B
    if ttl_s is None:
        receipt = driver.cache.withdraw(approval.approval_id)
        assert (receipt.num_blocks, receipt.num_leased_blocks) == (4, 0)
    else:
        clock.advance(20.0)
        driver.cache.expire_due()
    driver.check()
    assert num_pinned(driver) == 0
    driver.fill(32)


def test_a_pin_below_an_approved_run_outlives_the_approval() -> None:
    driver = CacheDriver(32, shares=True)
    approval = driver.approve(PROMPT[: 2 * B], A)
    driver.serve(PROMPT, domain=A)
    pin(driver, PROMPT)
    driver.cache.withdraw(approval.approval_id)
    driver.check()
    driver.fill(28)
    assert num_pinned(driver) == 4
    # Through the withdrawn run, to what is its own.
    assert driver.hit([*PROMPT, 1]) == 4 * B
    receipt = driver.cache.invalidate(
        ByPrefix(
            fingerprint=driver.fingerprint,
            domain=A,
            kind=AudienceKind.OWN,
            tokens=as_tokens(PROMPT[: 3 * B]),
        )
    )
    driver.check()
    # The approved part was lost before, and is no loss now.
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (2, 0)
    driver.fill(32)


def test_part_of_a_block_cannot_be_pinned() -> None:
    driver = CacheDriver(16)
    driver.serve(numbered(B + 2))
    handle = handle_of(driver, numbered(B + 2))
    with pytest.raises(InvalidInputError, match="whole blocks"):
        driver.cache.browser.pin(handle, 0)


def test_a_pin_that_is_not_counted_is_noticed() -> None:
    driver = CacheDriver(16)
    driver.serve(PROMPT)
    pin(driver, PROMPT)
    driver.cache.approved.pins.num_blocks += 1
    with pytest.raises(InvariantError, match="pinned blocks"):
        driver.cache.check_invariants()
