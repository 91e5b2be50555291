"""What the value policy is told, and what it must not be told."""

import pytest

from prefold.cache import APPROVING, ApprovalTerms, QuotaSettings, Retention, Share
from prefold.errors import CapacityError
from prefold.eviction.value import Value
from prefold.identity.domain import Domain
from prefold.tree.dead import all_children
from prefold.tree.node import Node
from support.cache_driver import A, CacheDriver, numbered
from support.settable_clock import SettableClock

B = 4


def make_driver(num_blocks: int = 40) -> CacheDriver:
    return CacheDriver(num_blocks, B, clock=SettableClock(), policy="value")


def nodes_of(driver: CacheDriver) -> list[Node]:
    nodes = all_children(driver.root)
    for node in nodes:
        nodes += all_children(node)
    return nodes


def check_cohorts(driver: CacheDriver) -> None:
    """Every block that waits is in a node of its cohort, or remembered as lost."""
    waiting: dict[int, int] = {}
    cohorts = {}
    for node in nodes_of(driver):
        if node.cohort is not None:
            cohorts[id(node.cohort)] = node.cohort
            waiting[id(node.cohort)] = waiting.get(id(node.cohort), 0) + node.num_blocks
    for key, cohort in cohorts.items():
        assert cohort.num_live == waiting[key] + cohort.num_lost


def test_a_run_that_is_extended_after_somebody_else_used_it_counts_once() -> None:
    driver = make_driver()
    first = driver.begin(numbered(13))
    driver.compute(first, 8)
    driver.end(driver.acquire(numbered(9)))
    driver.compute(first, 12)
    driver.end(first)
    check_cohorts(driver)


def test_cohorts_add_up_through_forks_copies_evictions_and_invalidation() -> None:
    driver = make_driver(num_blocks=24)
    for number in range(60):
        tokens = [*numbered(2 * B), *numbered(1 + number % 11, 100 * (1 + number % 5))]
        run = driver.begin(tokens)
        driver.compute(run)
        if number % 7 == 0:
            for twin in driver.fork(run, 2):
                driver.extend(twin, [7, 8, 9])
                driver.end(twin)
        driver.end(run)
        if number % 9 == 0:
            driver.fill(driver.cache.counts.free + 3)
        check_cohorts(driver)
        assert isinstance(driver.clock, SettableClock)
        driver.clock.advance(1.0)


def test_what_is_remembered_stays_bounded_where_the_same_is_lost_again_and_again() -> None:
    driver = make_driver(num_blocks=10)
    for number in range(2000):
        driver.serve(numbered(6 * B, 1000 * (number % 3)))
    policy = driver.cache.room.queue.policy_of(driver.cache._quotas.of_domain(A))
    assert isinstance(policy, Value)
    assert len(policy._lost) < 500
    assert sum(len(waiting) for waiting in policy._by_age) < 500


def test_an_ended_conversation_takes_nobody_along() -> None:
    driver = make_driver()
    system = numbered(2 * B, 1000)
    old = numbered(2 * B, 5000)
    driver.serve(old)
    for start in (50, 60):
        driver.serve([*system, start, start + 1, start + 2])
    driver.serve([*system, 70, 71, 72], retention=Retention(ends_conversation=True))
    driver.fill(driver.cache.counts.free + 1)
    assert driver.hit([*system, 70, 71, 72, 73, 74]) == 2 * B
    assert driver.hit([*system, 50, 51, 52, 53, 54]) == 2 * B
    assert driver.hit([*old, 1]) == 2 * B


def test_what_a_dropped_copy_let_go_is_not_taken_for_computed() -> None:
    clock = SettableClock()
    shares = QuotaSettings(shares=(Share(domain=A, maximum=0.05),))
    driver = CacheDriver(64, 8, clock=clock, quotas=shares)
    long = numbered(16)
    branch = [*long[:14], 77, 78, 80, 81]
    first = driver.begin([*long, 17])
    driver.compute(first, 16)
    waiting = driver.acquire(branch)
    driver.reserve(waiting, 18)
    driver.end(first)
    other = driver.begin(branch)
    driver.compute(other, 16)
    driver.end(other)
    reached = driver.cache.adopt(waiting.lease, waiting.array, waiting.computed)
    waiting.computed = reached
    assert reached == max(
        waiting.lease.num_published_tokens, waiting.lease.num_matched_tokens
    )
    driver.check()
    driver.end(waiting)


def test_an_approval_made_again_leaves_open_requests_their_room() -> None:
    shares = (Share(domain=Domain("a"), reserved=0.1),)
    driver = CacheDriver(40, B, quotas=QuotaSettings(shares=shares))
    prefix, owner = numbered(20 * B), Domain("o")
    driver.approve(prefix, owner)
    driver.fill(38, Domain("a"))
    run = driver.begin(prefix, owner, access=APPROVING)
    driver.compute(run)
    with pytest.raises(CapacityError, match="needs up to 30"):
        driver.cache.approve(run.lease, len(prefix), ApprovalTerms(label="it"), num_kept=30)
    driver.end(run)
