"""Time to live, priority, and conversations that ended."""

import math

import pytest

from prefold.cache import ApprovalTerms, MissKind, Retention
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from prefold.tree.expiry import Expiries
from support.cache_driver import A, CacheDriver, numbered
from support.running import as_tokens
from support.settable_clock import SettableClock

B = 4
SHORT = Retention(ttl_s=10.0)
LONG = Retention(ttl_s=100.0)
PROMPT = numbered(4 * B)
PROBE = [*PROMPT, 999]


def make_driver(num_blocks: int = 32) -> tuple[CacheDriver, SettableClock]:
    clock = SettableClock()
    return CacheDriver(num_blocks, B, clock=clock), clock


def test_an_entry_is_reused_until_its_time_is_over_and_not_after() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=SHORT)
    clock.now = 9.999
    assert driver.hit(PROBE) == 4 * B
    clock.now = 10.0
    assert driver.hit(PROBE) == 0


def test_every_use_begins_the_time_anew() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=SHORT)
    for at in (8.0, 16.0, 24.0):
        clock.now = at
        assert driver.serve(PROBE[: 4 * B + 1], retention=SHORT) == 4 * B
    clock.now = 33.9
    assert driver.hit(PROBE) >= 4 * B
    clock.now = 34.0
    assert driver.hit(PROBE) == 0


def test_asking_does_not_prolong() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=SHORT)
    clock.now = 9.0
    assert driver.hit(PROBE) == 4 * B
    clock.now = 10.0
    assert driver.hit(PROBE) == 0


def test_where_requests_disagree_the_longest_holds() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=LONG)
    clock.now = 50.0
    driver.serve(PROBE[: 4 * B + 1], retention=SHORT)
    clock.now = 99.0
    assert driver.hit(PROBE) == 4 * B
    clock.now = 100.0
    assert driver.hit(PROBE) == 0


def test_what_a_longer_lived_prefix_is_continued_with_lives_its_own_time() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=LONG)
    longer = [*PROMPT, *numbered(2 * B, 500)]
    driver.serve(longer, retention=SHORT)
    clock.now = 10.0
    assert driver.hit([*longer, 999]) == 4 * B


def test_what_runs_does_not_expire() -> None:
    driver, clock = make_driver()
    run = driver.begin(PROMPT, retention=SHORT)
    driver.compute(run)
    clock.now = 50.0
    assert driver.hit(PROBE) == 4 * B
    driver.end(run)
    clock.now = 59.0
    assert driver.hit(PROBE) == 4 * B
    clock.now = 60.0
    assert driver.hit(PROBE) == 0


def test_an_expired_entry_is_explained() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=SHORT)
    clock.now = 20.0
    run = driver.acquire(PROBE)
    assert run.lease.miss.kind is MissKind.EXPIRED
    assert run.lease.miss.num_lost_blocks == 4
    assert run.lease.miss.lost_at == 10.0
    assert "expired" in run.lease.miss.describe()
    driver.end(run)


def test_expired_blocks_are_the_first_to_go() -> None:
    driver, clock = make_driver(num_blocks=8)
    old = numbered(4 * B, 500)
    driver.serve(old)
    clock.now = 1.0
    driver.serve(PROMPT, retention=SHORT)
    clock.now = 20.0
    driver.fill(4)
    assert driver.hit([*old, 999]) == 4 * B
    driver.fill(5)
    assert driver.hit([*old, 999]) == 3 * B


def test_it_can_be_written_again_once_it_expired() -> None:
    driver, clock = make_driver()
    for at in (0.0, 20.0, 40.0):
        clock.now = at
        assert driver.serve(PROMPT, retention=SHORT) == 0
        assert driver.hit(PROBE) == 4 * B


def test_a_partly_filled_block_expires_as_well() -> None:
    driver, clock = make_driver()
    driver.serve(numbered(B - 1), retention=SHORT)
    driver.serve([*PROMPT, 71, 72, 73, 74, 75], retention=SHORT)
    probe = [*PROMPT, 71, 72, 73, 74, 75, 76, 77]
    assert driver.hit(probe) > 4 * B
    clock.now = 10.0
    assert driver.hit(probe) == 0
    driver.cache.expire_due()
    driver.cache.room.sweep()
    assert driver.cache.counts.idle == 0


def test_expiry_changes_the_version() -> None:
    driver, clock = make_driver()
    driver.serve(PROMPT, retention=SHORT)
    before = driver.cache.version(driver.fingerprint)
    clock.now = 10.0
    assert driver.cache.version(driver.fingerprint) != before


def test_a_readers_time_does_not_shorten_or_prolong_what_is_approved() -> None:
    clock = SettableClock()
    driver = CacheDriver(32, B, clock=clock, shares=True)
    domain = Domain("a/b")
    driver.approve(PROMPT, A, ttl_s=30.0)
    driver.serve(PROBE, domain=domain, retention=SHORT)
    clock.now = 29.0
    assert driver.hit(PROBE, domain) == 4 * B
    clock.now = 30.0
    assert driver.hit(PROBE, domain) == 0


def test_what_expires_in_several_branches_at_once_is_counted_once() -> None:
    driver, clock = make_driver()
    for start in (500, 600):
        driver.serve([*PROMPT, *numbered(2 * B, start)], retention=SHORT)
    clock.now = 10.0
    run = driver.acquire(PROBE)
    assert run.lease.miss.num_lost_blocks == 8
    driver.end(run)


def test_many_uses_enter_one_expiry() -> None:
    driver, clock = make_driver()
    for index in range(500):
        clock.now = index * 0.01
        driver.serve(PROMPT, retention=SHORT)
    [tree] = driver.cache._trees.all()
    assert len(tree.expiries._due) <= 2 * Expiries.MIN_PRUNED


def served(driver: CacheDriver, *prompts: tuple[int, Retention]) -> list[list[int]]:
    made = []
    for start, retention in prompts:
        prompt = numbered(2 * B, start)
        driver.serve(prompt, retention=retention)
        made.append(prompt)
    return made


def hits(driver: CacheDriver, prompts: list[list[int]]) -> list[int]:
    return [driver.hit([*prompt, 999]) for prompt in prompts]


def test_a_low_priority_goes_first_and_a_high_one_last() -> None:
    driver, _ = make_driver(num_blocks=6)
    prompts = served(
        driver,
        (100, Retention(priority=5)),
        (200, Retention(priority=-5)),
        (300, Retention()),
    )
    driver.fill(2)
    assert hits(driver, prompts) == [2 * B, 0, 2 * B]
    driver.fill(4)
    assert hits(driver, prompts) == [2 * B, 0, 0]


def test_the_highest_priority_of_its_users_holds() -> None:
    driver, _ = make_driver(num_blocks=4)
    low = numbered(2 * B)
    driver.serve(low, retention=Retention(priority=-5))
    driver.serve([*low, 1], retention=Retention(priority=-1))
    [other] = served(driver, (300, Retention(priority=-3)))
    driver.fill(1)
    assert hits(driver, [low, other]) == [2 * B, B]


def test_a_conversation_that_ended_goes_first_with_all_that_only_it_uses() -> None:
    driver, _ = make_driver(num_blocks=12)
    system = numbered(2 * B, 1000)
    other = [*system, *numbered(2 * B, 2000)]
    turn = [*system, *numbered(2 * B, 3000)]
    last = [*turn, *numbered(2 * B, 4000)]
    driver.serve(turn)
    driver.serve(other)
    driver.serve(last, retention=Retention(ends_conversation=True))
    # 8 blocks: 2 of the system prompt, 2 of the other, 4 of the conversation.
    driver.fill(8)
    assert hits(driver, [other, last]) == [4 * B, 2 * B]


def test_an_ended_conversation_that_goes_on_is_like_any_other() -> None:
    driver, _ = make_driver(num_blocks=4)
    first = numbered(2 * B)
    driver.serve(first, retention=Retention(ends_conversation=True))
    [other] = served(driver, (300, Retention()))
    driver.end(driver.acquire([*first, 1]))
    driver.fill(1)
    assert hits(driver, [first, other]) == [2 * B, B]


def test_what_a_queued_request_waits_for_is_evicted_last_but_is_evicted() -> None:
    driver, clock = make_driver(num_blocks=4)
    old, new = served(driver, (100, Retention()), (300, Retention()))
    driver.cache.room.expect(driver.lookup([*old, 999]))
    driver.fill(2)
    assert hits(driver, [old, new]) == [2 * B, 0]
    driver.fill(4)
    assert hits(driver, [old, new]) == [0, 0]
    clock.advance(1.0)


def test_waiting_ends_with_the_use() -> None:
    driver, _ = make_driver(num_blocks=4)
    old, new = served(driver, (100, Retention()), (300, Retention()))
    driver.cache.room.expect(driver.lookup([*old, 999]))
    driver.serve(old)
    driver.serve(new)
    driver.fill(1)
    assert hits(driver, [old, new]) == [B, 2 * B]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": -1.0}, "ttl_s"),
        ({"ttl_s": math.nan}, "ttl_s"),
        ({"ttl_s": True}, "ttl_s"),
        ({"ttl_s": "1"}, "ttl_s"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 101}, "from -100 to 100, got 101"),
        ({"priority": -101}, "from -100 to 100"),
        ({"ends_conversation": 1}, "ends_conversation"),
    ],
)
def test_a_wish_that_is_none_is_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        Retention(**values)  # type: ignore[arg-type]  # what the test is about


def test_terms_and_retention_are_apart() -> None:
    driver, clock = make_driver()
    run = driver.begin(PROMPT, A)
    driver.compute(run)
    driver.end(run)
    assert ApprovalTerms(label="it").ttl_s is None
    clock.now = 1e9
    assert driver.cache.lookup(driver.fingerprint, A, as_tokens(PROBE)).num_hit_tokens == (
        4 * B
    )
