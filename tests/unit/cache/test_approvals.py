"""Approvals: who reads them, what ends them, and what stays of them then."""

import pytest

from prefold.cache import (
    APPROVING,
    READ_WRITE,
    Access,
    ApprovalTerms,
    ByApproved,
    ByPrefix,
    Everything,
    MissKind,
)
from prefold.errors import CapacityError, InvalidInputError, LeaseReleasedError, StateError
from prefold.identity.block_key import extend_content, root_content
from prefold.identity.domain import PUBLIC, AudienceKind, Domain
from support.cache_driver import CacheDriver, numbered
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.settable_clock import SettableClock

B = 8
TEAM, ALICE, STRANGER = Domain("a"), Domain("a/alice"), Domain("x")
PREFIX = numbered(3 * B)


def make_driver(num_blocks: int = 64) -> CacheDriver:
    return CacheDriver(num_blocks, block_size=B, shares=True, clock=SettableClock(1_000.0))


def later(driver: CacheDriver, seconds: float) -> None:
    assert isinstance(driver.clock, SettableClock)
    driver.clock.advance(seconds)


def hits(driver: CacheDriver, *domains: Domain) -> list[int]:
    return [driver.lookup([*PREFIX, 1], domain).num_matched_tokens for domain in domains]


# -- approve ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "expected"),
    [(PUBLIC, [24, 24, 24, 24]), (TEAM, [24, 24, 24, 0]), (ALICE, [0, 24, 0, 0])],
)
def test_an_approved_prefix_is_read_by_its_domain_and_all_below(
    domain: Domain, expected: list[int]
) -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, domain)
    assert hits(driver, TEAM, ALICE, Domain("a", b"s"), STRANGER) == expected
    assert (approval.domain, approval.label, approval.pinned) == (domain, "it", False)
    assert approval.tokens.tolist() == PREFIX
    assert driver.cache.approved.approvals() == (approval,)


def test_nothing_is_read_before_it_is_approved() -> None:
    driver = make_driver()
    run = driver.begin(PREFIX, TEAM, access=APPROVING)
    driver.compute(run)
    assert hits(driver, TEAM, ALICE) == [0, 0]
    seen = driver.lookup([*PREFIX, 1], ALICE)
    assert (seen.miss.kind, seen.frontier) == (MissKind.NEVER_SEEN, None)
    driver.end(run)
    assert hits(driver, TEAM, ALICE) == [0, 0]
    assert driver.cache.counts.free == 64, "what nobody approved was left behind"


def test_only_whole_blocks_are_approved_and_no_tail_is_left_behind() -> None:
    driver = make_driver()
    approval = driver.approve([*PREFIX, 7, 7, 7, 7, 7], TEAM)
    assert len(approval.tokens) == len(PREFIX)
    assert driver.hit([*PREFIX, 7, 7, 7, 7, 7, 1], ALICE) == len(PREFIX)
    assert driver.cache.counts.idle == 3


def test_what_was_computed_beyond_what_is_approved_goes() -> None:
    driver = make_driver()
    run = driver.begin(PREFIX, TEAM, access=APPROVING)
    driver.compute(run)
    driver.cache.approve(run.lease, 2 * B + 3, ApprovalTerms(label="two"))
    driver.end(run)
    assert hits(driver, ALICE) == [2 * B]
    assert driver.cache.counts.idle == 2


def test_approving_rests_on_no_other_audience() -> None:
    driver = make_driver()
    driver.approve(PREFIX, PUBLIC)
    driver.serve(PREFIX, domain=TEAM)
    team = driver.begin(PREFIX, TEAM, access=APPROVING)
    assert team.lease.num_hit_tokens == 0
    driver.end(team)
    driver.approve(PREFIX, TEAM)
    [public, _] = driver.cache.approved.approvals()
    driver.cache.withdraw(public.approval_id)
    driver.check()
    assert hits(driver, ALICE, STRANGER) == [24, 0]


def test_a_reader_never_extends_an_approved_run() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM)
    driver.serve([*PREFIX, *numbered(B, 100)], domain=TEAM)
    assert driver.hit([*PREFIX, *numbered(B, 100), 1], TEAM) == 4 * B
    assert driver.hit([*PREFIX, *numbered(B, 100), 1], ALICE) == 3 * B


def test_approving_more_does_not_extend_what_is_approved_in_place() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM, label="short")
    run = driver.begin([*PREFIX, *numbered(B, 100)], TEAM, access=APPROVING)
    assert run.lease.num_matched_tokens == 3 * B
    driver.compute(run)
    assert driver.hit([*PREFIX, *numbered(B, 100), 1], ALICE) == 3 * B
    driver.end(run)
    long = driver.approve([*PREFIX, *numbered(B, 100)], TEAM, label="long")
    assert driver.hit([*PREFIX, *numbered(B, 100), 1], ALICE) == 4 * B
    driver.cache.withdraw(long.approval_id)
    driver.check()
    assert driver.hit([*PREFIX, *numbered(B, 100), 1], ALICE) == 3 * B


def test_evicted_blocks_are_computed_by_each_reader_for_itself() -> None:
    driver = make_driver(num_blocks=8)
    approval = driver.approve(PREFIX, TEAM)
    driver.fill(8)
    assert hits(driver, TEAM, ALICE) == [0, 0]
    assert driver.lookup([*PREFIX, 1], ALICE).miss.kind is MissKind.EVICTED
    driver.serve(PREFIX, domain=ALICE)
    assert hits(driver, ALICE, TEAM) == [24, 0]
    assert driver.cache.approved.approvals() == (approval,)
    assert driver.approve(PREFIX, TEAM) == approval
    assert hits(driver, ALICE, TEAM) == [24, 24]


def test_exactly_the_same_again_is_the_same_approval() -> None:
    driver = make_driver()
    first = driver.approve(PREFIX, TEAM, pinned=True, ttl_s=9.0)
    later(driver, 1.0)
    again = driver.approve([*PREFIX, 5], TEAM, pinned=True, ttl_s=9.0)
    assert again is first
    assert driver.cache.approved.num_pinned_blocks == 3


def test_a_label_names_one_prefix_in_a_domain() -> None:
    driver = make_driver()
    first = driver.approve(PREFIX, TEAM, label="rules")
    with pytest.raises(InvalidInputError, match="'rules' is taken in 'a'") as raised:
        driver.approve(numbered(2 * B, 500), TEAM, label="rules")
    assert first.approval_id in str(raised.value)
    driver.approve(numbered(2 * B, 500), ALICE, label="rules")
    driver.check()


@pytest.mark.parametrize(
    "terms", [{"label": "other"}, {"pinned": True}, {"ttl_s": 5.0}], ids=str
)
def test_a_prefix_has_one_approval_in_a_domain(terms: dict[str, object]) -> None:
    driver = make_driver()
    first = driver.approve(PREFIX, TEAM)
    with pytest.raises(InvalidInputError, match="approved for 'a' already, as 'it'"):
        driver.approve(PREFIX, TEAM, **terms)  # type: ignore[arg-type]
    assert driver.cache.approved.approvals() == (first,)
    driver.cache.withdraw(first.approval_id)
    driver.approve(PREFIX, TEAM, **terms)  # type: ignore[arg-type]


def test_conflicts_are_told_before_anything_is_computed() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM)
    check = driver.cache.approved.check
    it = driver.fingerprint
    check(it, TEAM, as_tokens(PREFIX), ApprovalTerms(label="it"))
    check(it, TEAM, as_tokens(PREFIX[: 2 * B]), ApprovalTerms(label="shorter"))
    other = make_fingerprint(block_size=B, weights=b"other")
    check(other, TEAM, as_tokens(PREFIX[: 2 * B]), ApprovalTerms(label="it"))
    with pytest.raises(InvalidInputError, match="other terms"):
        check(it, TEAM, as_tokens(PREFIX), ApprovalTerms(label="new"))
    with pytest.raises(InvalidInputError, match="is taken"):
        check(it, TEAM, as_tokens(PREFIX[:B]), ApprovalTerms(label="it"))
    with pytest.raises(InvalidInputError, match="at least one block, 8 tokens, got 7"):
        check(it, TEAM, as_tokens(PREFIX[:7]), ApprovalTerms(label="new"))
    with pytest.raises(InvalidInputError, match="nothing can be approved for"):
        check(it, Domain("a", b"s"), as_tokens(PREFIX), ApprovalTerms(label="new"))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"label": ""}, "needs a label"),
        ({"label": "  "}, "needs a label"),
        ({"label": 5}, "needs a label"),
        ({"label": "a\nb"}, "printable"),
        ({"label": "x" * 201}, "at most 200 characters, got 201"),
        ({"pinned": 1}, "pinned must be"),
        ({"ttl_s": 0.0}, "above 0"),
        ({"ttl_s": -1}, "above 0"),
        ({"ttl_s": float("nan")}, "above 0"),
        ({"ttl_s": float("inf")}, "above 0"),
        ({"ttl_s": True}, "above 0"),
        ({"ttl_s": "9"}, "above 0"),
    ],
)
def test_senseless_terms_are_refused(terms: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ApprovalTerms(**({"label": "it"} | terms))  # type: ignore[arg-type]


def test_only_a_request_that_approves_can_approve() -> None:
    driver = make_driver()
    run = driver.begin(PREFIX, TEAM)
    driver.compute(run)
    with pytest.raises(StateError, match="acquired to approve"):
        driver.cache.approve(run.lease, 24, ApprovalTerms(label="it"))
    driver.end(run)
    approving = driver.begin(PREFIX, TEAM, access=APPROVING)
    driver.compute(approving, 2 * B)
    with pytest.raises(InvalidInputError, match="3 blocks are to be approved, but 2"):
        driver.cache.approve(approving.lease, 24, ApprovalTerms(label="it"))
    driver.end(approving)
    with pytest.raises(LeaseReleasedError):
        driver.cache.approve(approving.lease, 24, ApprovalTerms(label="it"))


def test_what_was_invalidated_while_it_was_computed_cannot_be_approved() -> None:
    driver = make_driver()
    run = driver.begin(PREFIX, TEAM, access=APPROVING)
    driver.compute(run)
    driver.cache.invalidate(Everything())
    with pytest.raises(StateError, match="invalidated meanwhile"):
        driver.cache.approve(run.lease, 24, ApprovalTerms(label="it"))
    driver.end(run)
    assert hits(driver, TEAM) == [0]


def test_no_representation_shows_tokens() -> None:
    driver = make_driver()
    approval = driver.approve([987_654] * B, TEAM)
    assert "987654" not in repr(approval)


def test_a_request_reads_only_the_approved_domains_it_wants() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM)
    for paths, expected in ((set(), 0), ({"public"}, 0), ({"a"}, 24)):
        access = Access(read=True, write=True, approved=frozenset(paths))
        run = driver.acquire([*PREFIX, 1], ALICE, access=access)
        assert run.lease.num_matched_tokens == expected
        driver.end(run)


# -- withdrawal and expiry -------------------------------------------------------------


def test_a_withdrawn_run_nobody_uses_is_freed_at_once_and_told() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    later(driver, 5.0)
    receipt = driver.cache.withdraw(approval.approval_id)
    driver.check()
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (3, 0)
    assert (receipt.num_approvals, receipt.is_upper_bound) == (1, False)
    assert driver.cache.counts.free == 64
    assert hits(driver, TEAM, ALICE) == [0, 0]
    miss = driver.lookup([*PREFIX, 1], ALICE).miss
    assert (miss.kind, miss.at_token) == (MissKind.WITHDRAWN, 0)
    assert (miss.lost_at, miss.num_lost_blocks) == (1_005.0, 3)
    assert driver.lookup([*PREFIX, 1], STRANGER).miss.kind is MissKind.NEVER_SEEN
    assert driver.cache.approved.approvals() == ()


def test_a_withdrawn_run_is_transparent_to_what_readers_hung_below() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    own = [*PREFIX, *numbered(B, 100)]
    driver.serve(own, domain=ALICE)
    driver.cache.withdraw(approval.approval_id)
    driver.check()
    assert driver.hit([*own, 1], ALICE) == 4 * B
    assert driver.hit([*own, 1], TEAM) == 0
    # Neither a match nor a copy ends in it.
    assert driver.hit([*PREFIX, 1], ALICE) == 0
    assert driver.hit([*PREFIX[: 2 * B + 5], 1], ALICE) == 0
    assert driver.lookup([*PREFIX, 1], ALICE).miss.kind is MissKind.WITHDRAWN


def test_no_copy_comes_from_a_withdrawn_block() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX[:B], TEAM)
    run = driver.acquire([*PREFIX[:B], 1], ALICE)
    assert driver.hit([*PREFIX[:5], 99], ALICE) == 5
    driver.cache.withdraw(approval.approval_id)
    assert driver.hit([*PREFIX[:5], 99], ALICE) == 0
    driver.end(run)


def test_a_running_request_goes_on_below_a_withdrawn_run() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    own = [*PREFIX, *numbered(2 * B, 100)]
    run = driver.begin(own, ALICE)
    receipt = driver.cache.withdraw(approval.approval_id)
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (3, 3)
    driver.compute(run)
    driver.end(run)
    assert driver.hit([*own, 1], ALICE) == 5 * B
    assert driver.hit([*PREFIX, 1], ALICE) == 0


def test_a_transparent_run_goes_with_the_last_request_that_used_it() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    run = driver.acquire([*PREFIX, 1], ALICE)
    driver.cache.withdraw(approval.approval_id)
    driver.check()
    assert driver.cache.counts.shared == 3
    driver.end(run)
    assert driver.cache.counts.free == 64


def test_what_another_approval_has_stays() -> None:
    driver = make_driver()
    long = driver.approve(PREFIX, TEAM, label="long")
    short = driver.approve(PREFIX[: 2 * B], TEAM, label="short")
    assert driver.cache.withdraw(long.approval_id).num_blocks == 1
    driver.check()
    assert hits(driver, ALICE) == [2 * B]
    assert driver.cache.withdraw(short.approval_id).num_blocks == 2
    assert driver.cache.counts.free == 64


def test_the_shorter_of_two_approvals_may_go_first() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM, label="long")
    short = driver.approve(PREFIX[: 2 * B], TEAM, label="short")
    assert driver.cache.withdraw(short.approval_id).num_blocks == 0
    driver.check()
    assert hits(driver, ALICE) == [3 * B]
    assert driver.shape() == [[3]], "what nothing tells apart is one run again"


def test_an_unknown_approval_gives_a_receipt_of_nothing() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    driver.cache.withdraw(approval.approval_id)
    receipt = driver.cache.invalidate(ByApproved(approval_id=approval.approval_id))
    assert (receipt.num_blocks, receipt.num_approvals) == (0, 0)


def test_an_approval_ends_with_its_time() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM, ttl_s=10.0)
    version = driver.cache.version(driver.fingerprint)
    later(driver, 9.5)
    assert hits(driver, ALICE) == [24]
    later(driver, 0.5)
    miss = driver.lookup([*PREFIX, 1], ALICE).miss
    assert driver.cache.counts.idle == 3, "a look-up changed something"
    assert (miss.kind, miss.lost_at) == (MissKind.EXPIRED, 1_010.0)
    assert (miss.at_token, miss.num_lost_blocks) == (0, 3)
    assert driver.cache.approved.approvals() == ()
    assert driver.cache.version(driver.fingerprint) != version
    assert driver.cache.counts.free == 64
    assert driver.lookup([*PREFIX, 1], ALICE).miss == miss
    assert driver.lookup([*PREFIX, 1], STRANGER).miss.kind is MissKind.NEVER_SEEN


def test_an_expired_approval_may_be_given_again() -> None:
    driver = make_driver()
    first = driver.approve(PREFIX, TEAM, ttl_s=10.0, pinned=True)
    later(driver, 10.0)
    second = driver.approve(PREFIX, TEAM, ttl_s=10.0, pinned=True)
    assert first.approval_id != second.approval_id
    assert second.expires_at == 1_020.0
    assert hits(driver, ALICE) == [24]


def test_approving_again_brings_a_transparent_run_back() -> None:
    driver = make_driver()
    first = driver.approve(PREFIX, TEAM)
    own = [*PREFIX, *numbered(B, 100)]
    driver.serve(own, domain=ALICE)
    driver.cache.withdraw(first.approval_id)
    run = driver.begin(PREFIX, TEAM, access=APPROVING)
    assert run.lease.num_hit_tokens == 23, "who approves finds what is there"
    driver.end(run)
    driver.approve(PREFIX, TEAM)
    driver.check()
    assert hits(driver, ALICE, TEAM) == [24, 24]
    assert driver.lookup([*PREFIX, *numbered(B, 70)], TEAM).miss.kind is (
        MissKind.NEVER_SEEN
    )
    assert driver.cache.counts.idle == 4, "the same blocks stand there twice"


def test_a_transparent_run_is_evicted_like_anything_else() -> None:
    driver = make_driver(num_blocks=8)
    approval = driver.approve(PREFIX, TEAM)
    driver.serve([*PREFIX, *numbered(B, 100)], domain=ALICE)
    driver.cache.withdraw(approval.approval_id)
    driver.fill(8)
    assert driver.cache.counts.free == 8
    assert driver.lookup([*PREFIX, 1], ALICE).miss.kind is MissKind.WITHDRAWN


def test_keys_of_withdrawn_blocks_find_nothing() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    run = driver.acquire([*PREFIX, 1], ALICE)
    audience = run.lease.node.readers.audience
    assert audience.kind is AudienceKind.APPROVED
    contents = extend_content(root_content(driver.fingerprint), as_tokens(PREFIX), B)
    keys = [driver.cache.keys.key_of(audience, content) for content in contents]
    assert all(driver.cache.keys.find(key) is not None for key in keys)
    driver.cache.withdraw(approval.approval_id)
    assert [driver.cache.keys.find(key) for key in keys] == [None] * 3
    driver.end(run)


def test_another_fingerprint_tells_nothing_of_a_withdrawn_run() -> None:
    driver = make_driver()
    approval = driver.approve(PREFIX, TEAM)
    run = driver.acquire([*PREFIX, 1], ALICE)
    other = make_fingerprint(block_size=B, weights=b"other")
    miss = driver.cache.lookup(other, ALICE, as_tokens(PREFIX)).miss
    assert miss.kind is MissKind.OTHER_FINGERPRINT
    driver.cache.withdraw(approval.approval_id)
    miss = driver.cache.lookup(other, ALICE, as_tokens(PREFIX)).miss
    assert miss.kind is MissKind.NEVER_SEEN
    driver.end(run)


# -- pins ------------------------------------------------------------------------------


def test_a_pinned_approval_is_never_evicted() -> None:
    driver = make_driver(num_blocks=8)
    approval = driver.approve(PREFIX, TEAM, pinned=True)
    assert driver.cache.approved.num_pinned_blocks == 3
    driver.fill(5)
    assert hits(driver, ALICE) == [24]
    assert driver.cache.room.num_available(ALICE) == 5
    driver.cache.withdraw(approval.approval_id)
    assert driver.cache.approved.num_pinned_blocks == 0
    assert driver.cache.counts.free == 8


def test_a_pin_on_part_of_a_longer_approval_counts_each_block_once() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM, label="long", pinned=True)
    short = driver.approve(PREFIX[:B], TEAM, label="short", pinned=True)
    assert driver.cache.approved.num_pinned_blocks == 3
    driver.cache.withdraw(short.approval_id)
    driver.check()
    assert driver.cache.approved.num_pinned_blocks == 3


def test_pins_take_at_most_four_fifths_of_the_pool() -> None:
    driver = make_driver(num_blocks=10)
    driver.approve(numbered(5 * B), TEAM, label="five", pinned=True)
    with pytest.raises(
        CapacityError, match="9 of 10 blocks would be pinned, and at most 8"
    ):
        driver.approve(numbered(4 * B, 500), TEAM, label="four", pinned=True)
    driver.check()
    assert driver.cache.counts.free == 5
    driver.approve(numbered(3 * B, 500), TEAM, label="three", pinned=True)
    assert driver.cache.approved.num_pinned_blocks == 8


def test_what_open_requests_may_need_is_not_pinned() -> None:
    driver = make_driver(num_blocks=10)
    run = driver.begin(PREFIX, TEAM, access=APPROVING)
    driver.compute(run)
    terms = ApprovalTerms(label="it", pinned=True)
    with pytest.raises(CapacityError, match="a request that is open needs up to 9"):
        driver.cache.approve(run.lease, 2 * B, terms, num_kept=9)
    driver.cache.approve(run.lease, 2 * B, terms, num_kept=8)
    driver.end(run)


def test_an_expired_pin_is_gone_when_blocks_are_needed() -> None:
    driver = make_driver(num_blocks=8)
    driver.approve(PREFIX, TEAM, pinned=True, ttl_s=10.0)
    run = driver.acquire([10**6], STRANGER)
    later(driver, 10.0)
    driver.reserve(run, 8 * B)
    driver.end(run)


@pytest.mark.parametrize("domain", [None, TEAM])
def test_invalidation_takes_pins_and_approvals_with_it(domain: Domain | None) -> None:
    driver = make_driver(num_blocks=8)
    driver.approve(PREFIX, TEAM, pinned=True)
    receipt = driver.cache.invalidate(
        ByPrefix(
            fingerprint=driver.fingerprint,
            domain=domain,
            tokens=as_tokens(PREFIX[: 2 * B]),
        )
    )
    driver.check()
    # The block before is not approved any more either, with the approval gone.
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (3, 0)
    assert receipt.num_approvals == 1
    assert driver.cache.approved.num_pinned_blocks == 0
    assert hits(driver, ALICE) == [0]
    driver.fill(8)


def test_approvals_survive_what_does_not_concern_them() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM, pinned=True)
    driver.serve(PREFIX, domain=STRANGER)
    driver.cache.invalidate(
        ByPrefix(fingerprint=driver.fingerprint, domain=STRANGER, tokens=as_tokens(PREFIX))
    )
    assert hits(driver, ALICE, STRANGER) == [24, 16]
    assert len(driver.cache.approved.approvals()) == 1


def test_approvals_hold_for_who_reads_and_writes_alike() -> None:
    driver = make_driver()
    driver.approve(PREFIX, TEAM)
    for access in (READ_WRITE, Access(read=True, write=False)):
        run = driver.begin([*PREFIX, 1], ALICE, access=access)
        assert run.lease.num_hit_tokens == 24
        driver.compute(run)
        driver.end(run)
