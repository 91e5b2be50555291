"""Whose idle blocks may be taken for whom."""

import pytest

from prefold.cache import APPROVING, ApprovalTerms, ByDomain, QuotaSettings, Share
from prefold.errors import CapacityError, ConfigError, InvariantError, OutOfBlocksError
from prefold.identity.domain import Domain
from support.cache_driver import CacheDriver, numbered

B = 4
ACME, GLOBEX, OTHER = Domain("acme"), Domain("globex"), Domain("other")
PROMPT = numbered(4 * B)


def make_driver(*shares: Share, num_blocks: int = 20, **options: float) -> CacheDriver:
    quotas = QuotaSettings(shares=shares, **options)  # type: ignore[arg-type]
    return CacheDriver(num_blocks, B, quotas=quotas)


def flood(driver: CacheDriver, domain: Domain, num_prompts: int, seed: int = 0) -> None:
    for index in range(num_prompts):
        driver.serve(numbered(4 * B, 10_000 + 100 * (seed + index)), domain=domain)


def test_what_is_reserved_survives_a_flood_and_the_rest_does_not() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.2))
    longer = [*PROMPT, *numbered(4 * B, 500)]
    driver.serve(longer, domain=ACME)
    flood(driver, OTHER, 50)
    assert driver.hit([*longer, 1], ACME) == 4 * B


def test_without_a_reservation_a_flood_takes_all() -> None:
    driver = make_driver()
    driver.serve(PROMPT, domain=ACME)
    flood(driver, OTHER, 50)
    assert driver.hit([*PROMPT, 1], ACME) == 0


def test_a_domain_below_counts_for_the_nearest_share_above() -> None:
    driver = make_driver(
        Share(domain=ACME, reserved=0.2), Share(domain=Domain("acme/lab"), reserved=0.2)
    )
    for domain in (Domain("acme/search"), Domain("acme/lab/x", salt=b"s")):
        driver.serve(PROMPT, domain=domain)
    flood(driver, OTHER, 50)
    assert driver.hit([*PROMPT, 1], Domain("acme/search")) == 4 * B
    assert driver.hit([*PROMPT, 1], Domain("acme/lab/x", salt=b"s")) == 4 * B


def test_a_tenants_own_need_takes_its_own_reservation() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.8))
    driver.serve(numbered(16 * B), domain=ACME)
    driver.fill(20, ACME)
    assert driver.cache.counts.free == 20


def test_unused_reservations_are_lent() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.8))
    flood(driver, OTHER, 5)
    assert driver.cache.counts.idle == 20
    driver.serve(PROMPT, domain=ACME)
    assert driver.hit([*PROMPT, 1], ACME) == 4 * B


def test_a_maximum_holds_after_every_request_and_takes_its_own_only() -> None:
    driver = make_driver(Share(domain=GLOBEX, maximum=0.3))
    driver.serve(PROMPT, domain=ACME)
    for index in range(10):
        flood(driver, GLOBEX, 1, index)
        assert driver.cache._quotas.of_domain(GLOBEX).num_idle <= 6
    assert driver.hit([*PROMPT, 1], ACME) == 4 * B
    assert driver.cache.counts.free > 0


def test_a_maximum_does_not_bound_what_runs() -> None:
    driver = make_driver(Share(domain=GLOBEX, maximum=0.1))
    run = driver.begin(numbered(16 * B), GLOBEX)
    driver.compute(run)
    assert driver.cache.counts.shared == 16
    driver.end(run)
    assert driver.cache.counts.idle == 2


def test_a_maximum_of_nothing_keeps_nothing() -> None:
    driver = make_driver(Share(domain=GLOBEX, maximum=0.0))
    driver.serve(numbered(7), domain=GLOBEX)
    assert driver.cache.counts.free == 20


def test_capacity_and_availability_leave_out_what_others_reserved() -> None:
    driver = make_driver(
        Share(domain=ACME, reserved=0.2), Share(domain=GLOBEX, reserved=0.4)
    )
    room = driver.cache.room
    assert room.capacity(OTHER, 0) == 8
    assert room.capacity(ACME, 0) == 12
    assert room.num_available(OTHER) == 20
    driver.serve(PROMPT, domain=ACME)
    assert (room.num_available(OTHER), room.num_available(ACME)) == (16, 20)
    with pytest.raises(OutOfBlocksError) as refused:
        driver.fill(17, OTHER)
    assert (refused.value.num_needed, refused.value.num_available) == (17, 16)


def test_what_died_in_a_reservation_is_there_for_others() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.8))
    driver.serve(numbered(12 * B), domain=ACME)
    driver.cache.invalidate(ByDomain(domain=ACME))
    driver.fill(20, OTHER)
    assert driver.cache.counts.free == 20


def test_approved_prefixes_count_as_fixed_where_somebody_reserves() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.4))
    driver.approve(PROMPT, ACME)
    assert driver.cache.room.capacity(OTHER, 0) == 20 - 8 - 4
    assert driver.cache.room.capacity(ACME, 0) == 20
    # What acme reserved hangs below what is approved, so neither can go for others.
    driver.serve([*PROMPT, *numbered(4 * B, 500)], domain=ACME)
    assert driver.cache.room.num_available(OTHER) == 20 - 4 - 4
    driver.fill(12, OTHER)
    assert driver.hit([*PROMPT, *numbered(4 * B, 500), 1], ACME) == 8 * B


def test_an_approval_leaves_open_requests_their_room() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.4))
    run = driver.begin(numbered(8 * B, 700), Domain("acme"))
    driver.compute(run)
    driver.end(run)
    approving = driver.begin(PROMPT, ACME, access=APPROVING)
    driver.compute(approving)
    with pytest.raises(CapacityError, match="needs up to 9"):
        driver.cache.approve(
            approving.lease, len(PROMPT), ApprovalTerms(label="it"), num_kept=9
        )
    driver.cache.approve(
        approving.lease, len(PROMPT), ApprovalTerms(label="it"), num_kept=8
    )
    driver.end(approving)


def test_pins_and_reservations_together_are_bounded() -> None:
    driver = make_driver(Share(domain=ACME, reserved=0.7))
    with pytest.raises(CapacityError, match="at most 2 may"):
        driver.approve(PROMPT, ACME, pinned=True)
    driver = make_driver(max_pinned=0.15)
    with pytest.raises(CapacityError, match="at most 3 may"):
        driver.approve(PROMPT, ACME, pinned=True)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Share(domain=ACME, reserved=1.5), "from 0 to 1, got 1.5"),
        (lambda: Share(domain=ACME, maximum=-0.1), "from 0 to 1, got -0.1"),
        (lambda: Share(domain=ACME, reserved=True), "from 0 to 1, got True"),
        (lambda: Share(domain=ACME, reserved=float("nan")), "from 0 to 1"),
        (lambda: Share(domain=ACME, reserved=0.5, maximum=0.4), "above its maximum"),
        (lambda: Share(domain=Domain("a", salt=b"x")), "without a salt"),
        (
            lambda: QuotaSettings(shares=(Share(domain=ACME), Share(domain=ACME))),
            "'acme' has two shares",
        ),
        (
            lambda: QuotaSettings(
                shares=(
                    Share(domain=ACME, reserved=0.5),
                    Share(domain=GLOBEX, reserved=0.4),
                )
            ),
            "90% of the cache is reserved, and at most 80%",
        ),
        (lambda: QuotaSettings(max_pinned=0.9), "at most 0.8"),
    ],
)
def test_shares_that_cannot_be_kept_are_refused(make: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()  # type: ignore[operator]  # a lambda


def test_eighty_percent_may_be_reserved() -> None:
    shares = tuple(Share(domain=Domain(name), reserved=0.1) for name in "abcdefgh")
    driver = CacheDriver(20, B, quotas=QuotaSettings(shares=shares))
    assert driver.cache._quotas.max_pinned == 0


def test_an_account_that_miscounts_is_found() -> None:
    driver = make_driver(Share(domain=ACME))
    driver.serve(PROMPT, domain=ACME)
    driver.cache._quotas.of_domain(ACME).num_idle += 1
    with pytest.raises(InvariantError, match="should count 4 idle"):
        driver.cache.check_invariants()
