"""What a miss says of what was lost: when, by whom, and for whose sake."""

import pytest

from prefold.cache import (
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    MissKind,
    Pressure,
    QuotaSettings,
    Retention,
    Selector,
    Share,
    selector_kind,
)
from prefold.errors import InvariantError
from prefold.identity.domain import Domain
from prefold.tree.graves import Grave, Graves
from prefold.tree.invalidation import NODES_A_STEP
from support.cache_driver import A, CacheDriver, numbered
from support.running import as_tokens
from support.settable_clock import SettableClock

B = 8
PROMPT = numbered(4 * B)
OTHER = Domain("b")


# -- whose need --------------------------------------------------------------------------


def shares(*paths: str, maximum: float = 1.0) -> QuotaSettings:
    return QuotaSettings(
        shares=tuple(Share(domain=Domain(path), maximum=maximum) for path in paths)
    )


@pytest.mark.parametrize("quotas", [QuotaSettings(), shares("a", "b")])
@pytest.mark.parametrize(("taker", "pressure"), [(A, Pressure.OWN), (OTHER, Pressure.POOL)])
def test_an_eviction_says_for_whose_request(
    quotas: QuotaSettings, taker: Domain, pressure: Pressure
) -> None:
    driver = CacheDriver(num_blocks=6, block_size=B, quotas=quotas)
    driver.serve(PROMPT)
    driver.fill(6, taker)
    miss = driver.lookup([*PROMPT, 1]).miss
    assert (miss.kind, miss.pressure) == (MissKind.EVICTED, pressure)


def test_all_domains_of_a_share_are_its_own() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B, quotas=shares("a"))
    driver.serve(PROMPT, domain=Domain("a/x"))
    driver.fill(6, Domain("a", salt=b"s"))
    miss = driver.lookup([*PROMPT, 1], Domain("a/x")).miss
    assert miss.pressure is Pressure.OWN


def test_domains_without_a_share_are_not_each_others_own() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B, quotas=shares("b"))
    driver.serve(PROMPT, domain=Domain("a/x"))
    driver.fill(6, Domain("a/y"))
    assert driver.lookup([*PROMPT, 1], Domain("a/x")).miss.pressure is Pressure.POOL


def test_what_is_above_a_maximum_goes_for_that() -> None:
    driver = CacheDriver(num_blocks=16, block_size=B, quotas=shares("a", maximum=0.125))
    driver.serve(PROMPT)
    miss = driver.lookup([*PROMPT, 1]).miss
    assert (miss.kind, miss.pressure) == (MissKind.EVICTED, Pressure.SHARE)
    assert "more than its share" in miss.describe()


def test_an_approved_prefix_is_of_the_domain_that_it_is_approved_for() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    driver.approve(PROMPT)
    driver.fill(6, A)
    miss = driver.lookup([*PROMPT, 1]).miss
    assert miss.kind is MissKind.EVICTED
    assert miss.pressure is Pressure.OWN


def test_whose_need_it_was_never_names_anybody() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B, quotas=shares("a", "secretive"))
    driver.serve(PROMPT)
    driver.fill(6, Domain("secretive"))
    miss = driver.lookup([*PROMPT, 1]).miss
    assert "secretive" not in repr(miss) + miss.describe()


# -- time to live ------------------------------------------------------------------------


def test_what_was_not_used_in_time_is_told_before_anybody_has_noticed() -> None:
    clock = SettableClock()
    driver = CacheDriver(block_size=B, clock=clock)
    clock.now = 100.0
    driver.serve(PROMPT, retention=Retention(ttl_s=10.0))
    clock.now = 111.0
    # ``lookup`` changes nothing, so what is over still hangs there.
    miss = driver.lookup([*PROMPT, 1]).miss
    assert (miss.kind, miss.lost_at, miss.num_lost_blocks) == (MissKind.EXPIRED, 110.0, 4)
    assert not miss.was_approved
    assert "not used again in time" in miss.describe()
    run = driver.acquire([*PROMPT, 1])
    assert run.lease.miss == miss


def test_an_approval_that_is_over_is_told_as_one() -> None:
    clock = SettableClock()
    driver = CacheDriver(block_size=B, clock=clock)
    clock.now = 100.0
    driver.approve(PROMPT, ttl_s=10.0)
    clock.now = 111.0
    miss = driver.lookup([*PROMPT, 1]).miss
    assert (miss.kind, miss.lost_at) == (MissKind.EXPIRED, 110.0)
    assert miss.was_approved
    assert "approval" in miss.describe()
    assert driver.acquire([*PROMPT, 1]).lease.miss == miss


# -- selectors ---------------------------------------------------------------------------


def every_selector(driver: CacheDriver) -> list[Selector]:
    fingerprint = driver.fingerprint
    return [
        Everything(),
        ByFingerprint(fingerprint=fingerprint),
        ByField(name="weights", value=fingerprint.weights),
        ByDomain(domain=A),
        ByDomain(domain=A, below=False),
        ByPrefix(fingerprint=fingerprint, domain=A, tokens=as_tokens(PROMPT[:B])),
        ByAge(older_than_s=0.0),
    ]


NAMES = ["everything", "fingerprint", "field weights", "domain", "domain", "prefix", "age"]


@pytest.mark.parametrize("number", range(len(NAMES)))
@pytest.mark.parametrize("is_swept", [False, True])
def test_an_invalidation_says_which_selector_and_when(
    number: int, *, is_swept: bool
) -> None:
    driver = CacheDriver(num_blocks=16, block_size=B)
    driver.serve(PROMPT)
    before = driver.clock()
    driver.cache.invalidate(every_selector(driver)[number])
    after = driver.clock()
    if is_swept:
        driver.fill(16)
    miss = driver.lookup([*PROMPT, 1]).miss
    assert (miss.kind, miss.at_token) == (MissKind.INVALIDATED, 0)
    assert miss.selector == NAMES[number]
    assert miss.lost_at is not None
    assert before < miss.lost_at < after
    assert f"by {NAMES[number]}" in miss.describe()
    # Whoever could not have hit it is told nothing.
    stranger = driver.lookup([*PROMPT, 1], OTHER).miss
    assert stranger.kind is MissKind.NEVER_SEEN
    assert driver.lookup([9, *PROMPT]).miss.kind is MissKind.NEVER_SEEN


def test_an_epoch_below_what_is_approved_is_told_where_it_began() -> None:
    driver = CacheDriver(block_size=B, shares=True)
    team = Domain("a/x")
    driver.approve(PROMPT[: 2 * B])
    driver.serve(PROMPT, domain=team)
    driver.cache.invalidate(ByDomain(domain=team))
    miss = driver.lookup([*PROMPT, 1], team).miss
    assert (miss.kind, miss.at_token) == (MissKind.INVALIDATED, 2 * B)
    assert miss.selector == "domain"
    # The same block after another prefix is another one.
    elsewhere = [*PROMPT[2 * B : 4 * B], 1]
    assert driver.lookup(elsewhere, team).miss.kind is MissKind.NEVER_SEEN


def test_what_is_cached_again_was_not_taken_by_an_epoch() -> None:
    driver = CacheDriver(num_blocks=16, block_size=B)
    driver.serve(PROMPT)
    driver.cache.invalidate(Everything())
    driver.serve(PROMPT)
    tree = driver.cache._trees.of(driver.fingerprint)
    assert len(tree.audiences.graves) == 0
    driver.fill(16)
    assert driver.lookup([*PROMPT, 1]).miss.kind is MissKind.EVICTED
    tree.tombstones.take_all(tree.root)
    assert driver.lookup([*PROMPT, 1]).miss.kind is MissKind.NEVER_SEEN


def test_age_is_told_of_what_nobody_has_unlinked_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefold.tree.invalidation.MAX_COUNTED", 8)
    driver = CacheDriver(num_blocks=1024, block_size=1)
    prompts = [[number, 1, 2] for number in range(4 * NODES_A_STEP)]
    for prompt in prompts:
        driver.serve(prompt)
    driver.cache.invalidate(ByAge(older_than_s=0.0))
    assert driver.root.children is not None
    assert len(driver.root.children) > NODES_A_STEP, "most still hang there"
    kinds = {driver.lookup([*prompt, 3]).miss.selector for prompt in prompts}
    assert kinds == {"age"}


def test_a_withdrawal_is_no_invalidation() -> None:
    driver = CacheDriver(block_size=B)
    approval = driver.approve(PROMPT)
    selector = ByApproved(approval_id=approval.approval_id)
    assert selector_kind(selector) == "approval"
    driver.cache.invalidate(selector)
    miss = driver.lookup([*PROMPT, 1]).miss
    assert (miss.kind, miss.was_approved) == (MissKind.WITHDRAWN, True)


def test_no_value_of_a_selector_is_in_its_kind() -> None:
    named = ByField(name="adapter", value=b"secret")
    assert selector_kind(named) == "field adapter"
    assert selector_kind(ByDomain(domain=Domain("secret"))) == "domain"


# -- where a cached prompt ended -----------------------------------------------------------


@pytest.mark.parametrize("num_tail", [1, 3, 4, B - 1])
def test_a_prompt_that_goes_on_where_another_ended_does_not_diverge(num_tail: int) -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(B + num_tail))
    miss = driver.lookup([*numbered(B + num_tail), *numbered(2 * B, 500)]).miss
    assert (miss.kind, miss.at_token) == (MissKind.NEVER_SEEN, B + num_tail)


@pytest.mark.parametrize("num_same", [1, 3, 5])
def test_one_that_differs_inside_of_a_tail_does(num_same: int) -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(numbered(B + 6))
    miss = driver.lookup([*numbered(B + num_same), *numbered(2 * B, 500)]).miss
    assert (miss.kind, miss.at_token) == (MissKind.DIVERGED, B + num_same)


# -- graves --------------------------------------------------------------------------------


def test_the_oldest_graves_are_forgotten_first() -> None:
    driver = CacheDriver(num_blocks=64, block_size=1)
    tree = driver.cache._trees.of(driver.fingerprint)
    tree.audiences.graves.limit = 3
    for number in range(5):
        driver.serve([number, 100])
        driver.cache.invalidate(Everything())
    driver.check()
    seen = [driver.lookup([number, 100, 1]).miss.kind for number in range(5)]
    assert seen == [MissKind.NEVER_SEEN] * 2 + [MissKind.INVALIDATED] * 3


def test_too_many_graves_are_found_out() -> None:
    graves = Graves(limit=0)
    graves._by_place[Domain("a"), 0, 0, 0] = Grave(1.0, "age")  # type: ignore[index]
    with pytest.raises(InvariantError, match="graves"):
        graves.check_invariants()
