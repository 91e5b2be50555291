"""Selectors beyond one domain's own: fields, domains below, approvals, ages."""

import pytest

from prefold.cache import (
    APPROVING,
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    MissKind,
    Receipt,
    Selector,
)
from prefold.cache.approval import ApprovalId, ApprovalTerms
from prefold.errors import InvalidInputError
from prefold.identity.domain import PUBLIC, Domain
from prefold.tree import invalidation
from support.cache_driver import A, CacheDriver, numbered
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.settable_clock import SettableClock

B = 4
PROMPT = numbered(3 * B)
BELOW, SALTED, OTHER = Domain("a/b"), Domain("a", b"s"), Domain("ab")


def make_driver(num_blocks: int = 64) -> CacheDriver:
    return CacheDriver(num_blocks, block_size=B, shares=True, clock=SettableClock(1_000.0))


def later(driver: CacheDriver, seconds: float) -> None:
    assert isinstance(driver.clock, SettableClock)
    driver.clock.advance(seconds)


def by_prefix(
    driver: CacheDriver, tokens: list[int], domain: Domain | None = None
) -> ByPrefix:
    return ByPrefix(fingerprint=driver.fingerprint, domain=domain, tokens=as_tokens(tokens))


def test_selectors_that_match_nothing_give_a_receipt_of_nothing() -> None:
    driver = make_driver()
    driver.serve(PROMPT)
    driver.approve(PROMPT, BELOW)
    elsewhere = make_fingerprint(block_size=2 * B)
    selectors: list[Selector] = [
        ByFingerprint(fingerprint=elsewhere),
        ByField(name="weights", value=b"unknown"),
        ByDomain(domain=Domain("unknown")),
        ByApproved(approval_id=ApprovalId("unknown")),
        by_prefix(driver, numbered(8, 900)),
        ByPrefix(fingerprint=elsewhere, domain=None, tokens=as_tokens(PROMPT)),
        ByAge(older_than_s=0),
    ]
    for number, selector in enumerate(selectors, start=1):
        assert driver.cache.invalidate(selector) == Receipt(
            num_blocks=0,
            num_leased_blocks=0,
            is_upper_bound=False,
            num_approvals=0,
            num_invalidations=number,
        )
        driver.check()
    assert driver.hit([*PROMPT, 1]) == driver.hit([*PROMPT, 1], BELOW) == 12
    assert driver.cache.snapshot().num_trees == 1, "a selector made a tree"


# -- by field --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("architecture", "TinyForCausalLM", "Other"),
        ("config", b"c", b"2"),
        ("weights", b"w", b"2"),
        ("tokenizer", b"t", b"2"),
        ("chat_template", b"e", None),
        ("adapter", None, b"lora"),
        ("position_config", b"p", b"2"),
        ("position_offset", 0, 7),
        ("compute_dtype", "float32", "bfloat16"),
        ("kv_dtype", "float32", "bfloat16"),
        ("layout_version", 1, 2),
        ("numerics", b"n", b"2"),
    ],
)
def test_every_field_of_a_fingerprint_selects(name: str, old: object, new: object) -> None:
    driver = make_driver()
    driver.serve(PROMPT)
    kept = driver.fingerprint
    driver.fingerprint = make_fingerprint(block_size=B, **{name: new})
    driver.serve(PROMPT)
    driver.approve(PROMPT, A)
    receipt = driver.cache.invalidate(ByField(name=name, value=new))  # type: ignore[arg-type]
    driver.check()
    assert (receipt.num_blocks, receipt.num_approvals) == (6, 1)
    assert driver.hit([*PROMPT, 1]) == 0
    driver.fingerprint = kept
    assert driver.hit([*PROMPT, 1]) == 12
    driver.cache.invalidate(ByField(name=name, value=old))  # type: ignore[arg-type]
    assert driver.hit([*PROMPT, 1]) == 0


def test_numbers_and_truths_are_not_the_same() -> None:
    driver = make_driver()
    driver.serve(PROMPT)
    value = ByField(name="layout_version", value=True)
    assert driver.cache.invalidate(value).num_blocks == 0


@pytest.mark.parametrize(
    ("name", "hint"),
    [("weight", "did you mean 'weights'"), ("chat-template", "did you mean 'chat_temp"),
     ("xyz", "known: architecture, config")],
)  # fmt: skip
def test_an_unknown_field_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(InvalidInputError, match=hint):
        ByField(name=name, value=b"w")


# -- by domain -------------------------------------------------------------------------


def test_a_domain_goes_with_all_that_is_below() -> None:
    driver = make_driver()
    its = (A, BELOW, SALTED)
    for domain in (*its, OTHER, PUBLIC):
        driver.serve(PROMPT, domain=domain)
    for domain in (A, BELOW, OTHER):
        driver.approve(numbered(8, 500), domain)
    receipt = driver.cache.invalidate(ByDomain(domain=A))
    driver.check()
    assert (receipt.num_blocks, receipt.num_approvals) == (3 * 3 + 2 * 2, 2)
    assert [driver.hit([*PROMPT, 1], domain) for domain in its] == [0, 0, 0]
    assert driver.hit([*numbered(8, 500), 1], BELOW) == 0
    assert driver.hit([*PROMPT, 1], OTHER) == driver.hit([*PROMPT, 1], PUBLIC) == 12
    assert driver.hit([*numbered(8, 500), 1], OTHER) == 8


def test_everything_is_below_public() -> None:
    driver = make_driver()
    for domain in (A, BELOW, SALTED, OTHER, PUBLIC):
        driver.serve(PROMPT, domain=domain)
    assert driver.cache.invalidate(ByDomain(domain=PUBLIC)).num_blocks == 15
    driver.fill(64)
    assert driver.cache.counts.free == 64


def test_what_hangs_below_an_approved_run_goes_with_its_domain() -> None:
    driver = make_driver()
    driver.approve(PROMPT, A)
    driver.serve([*PROMPT, *numbered(B, 100)], domain=BELOW)
    driver.serve(numbered(B, 700), domain=BELOW)
    receipt = driver.cache.invalidate(ByDomain(domain=A, below=False))
    driver.check()
    assert receipt.num_blocks == 4
    assert driver.hit([*PROMPT, *numbered(B, 100), 1], BELOW) == 0
    assert driver.hit([*numbered(B, 700), 1], BELOW) == 4


@pytest.mark.parametrize("domain", [A, BELOW, SALTED])
def test_revoking_keeps_running_requests_from_publishing(domain: Domain) -> None:
    driver = make_driver()
    run = driver.begin(PROMPT, domain)
    other = driver.begin(PROMPT, OTHER)
    driver.compute(run, 2)
    driver.cache.invalidate(ByDomain(domain=A))
    for each in (run, other):
        driver.compute(each)
        driver.end(each)
    assert driver.hit([*PROMPT, 1], domain) == 0
    assert driver.hit([*PROMPT, 1], OTHER) == 12


def test_a_request_that_approves_is_covered_with_its_domain() -> None:
    driver = make_driver()
    run = driver.begin(PROMPT, BELOW, access=APPROVING)
    driver.cache.invalidate(ByDomain(domain=A))
    driver.compute(run)
    assert run.lease.is_doomed
    driver.end(run)
    driver.fill(64)


# -- by prefix -------------------------------------------------------------------------


def test_a_prefix_of_everybodys() -> None:
    driver = make_driver()
    driver.approve(PROMPT, PUBLIC)
    longer = [*PROMPT, *numbered(B, 100)]
    for domain in (A, OTHER):
        driver.serve(longer, domain=domain)
    driver.serve([*numbered(B, 100), *PROMPT], domain=A)
    receipt = driver.cache.invalidate(by_prefix(driver, PROMPT[: 2 * B]))
    driver.check()
    # The first block does not begin with it, but nothing is approved there any more.
    assert (receipt.num_blocks, receipt.num_approvals) == (5, 1)
    assert driver.hit([*longer, 1], A) == driver.hit([*longer, 1], OTHER) == 0
    assert driver.hit([*numbered(B, 100), *PROMPT], A) == 3 * B


def test_a_domains_own_goes_where_it_hangs_below_what_others_share() -> None:
    driver = make_driver()
    driver.approve(PROMPT, PUBLIC)
    longer = [*PROMPT, *numbered(B, 100)]
    for domain in (A, OTHER):
        driver.serve(longer, domain=domain)
    receipt = driver.cache.invalidate(by_prefix(driver, PROMPT[: 2 * B], A))
    driver.check()
    assert (receipt.num_blocks, receipt.num_approvals) == (1, 0)
    assert driver.hit([*longer, 1], A) == 3 * B
    assert driver.hit([*longer, 1], OTHER) == 4 * B


def test_a_prefix_of_a_domain_is_also_what_is_approved_for_it() -> None:
    driver = make_driver()
    driver.approve(PROMPT, A)
    driver.serve([*PROMPT, *numbered(B, 100)], domain=BELOW)
    receipt = driver.cache.invalidate(by_prefix(driver, PROMPT, A))
    driver.check()
    assert receipt.num_approvals == 1
    assert driver.hit([*PROMPT, *numbered(B, 100)], BELOW) == 0


@pytest.mark.parametrize("domain", [None, A])
def test_a_request_that_can_still_begin_with_a_prefix_is_covered(
    domain: Domain | None,
) -> None:
    driver = make_driver()
    runs = [driver.begin(PROMPT, each) for each in (A, OTHER)]
    driver.cache.invalidate(by_prefix(driver, PROMPT[: 2 * B], domain))
    for run in runs:
        driver.compute(run)
        driver.end(run)
    assert driver.hit([*PROMPT, 1], A) == 0
    assert driver.hit([*PROMPT, 1], OTHER) == (0 if domain is None else 12)


# -- by approval -----------------------------------------------------------------------


def test_by_approval_is_withdrawal() -> None:
    driver = make_driver()
    approval = driver.approve(PROMPT, A, pinned=True)
    receipt = driver.cache.invalidate(ByApproved(approval_id=approval.approval_id))
    assert (receipt.num_blocks, receipt.num_approvals) == (3, 1)
    assert receipt.num_leased_blocks == 0, "a pin is no running request"
    assert driver.cache.counts.free == 64


# -- by age ----------------------------------------------------------------------------


@pytest.mark.parametrize("age", [-1, float("nan"), float("inf"), True, "9", None])
def test_an_age_is_a_number_of_seconds(age: object) -> None:
    with pytest.raises(InvalidInputError, match="older_than_s must be a number"):
        ByAge(older_than_s=age)  # type: ignore[arg-type]


def test_what_is_older_goes_and_what_is_younger_stays() -> None:
    driver = make_driver()
    driver.serve(PROMPT)
    driver.approve(PROMPT, BELOW, label="old")
    later(driver, 10.0)
    driver.serve(numbered(8, 500))
    young = driver.approve(numbered(8, 500), BELOW, label="young")
    later(driver, 10.0)
    receipt = driver.cache.invalidate(ByAge(older_than_s=15))
    driver.check()
    assert (receipt.num_blocks, receipt.is_upper_bound) == (6, False)
    assert driver.cache.approved.approvals() == (young,)
    assert driver.hit([*PROMPT, 1]) == driver.hit([*PROMPT, 1], BELOW) == 0
    assert driver.hit([*numbered(8, 500), 1]) == driver.hit([*numbered(8, 500), 1], BELOW)
    assert driver.lookup([*PROMPT, 1]).miss.kind is MissKind.INVALIDATED


def test_what_was_computed_after_something_old_goes_with_it() -> None:
    driver = make_driver()
    driver.serve(PROMPT)
    later(driver, 10.0)
    driver.serve([*PROMPT, *numbered(8, 500)])
    driver.cache.invalidate(ByAge(older_than_s=5))
    assert driver.hit([*PROMPT, *numbered(8, 500)]) == 0


@pytest.mark.parametrize("age", [5.0, 0.5])
def test_a_request_admitted_before_publishes_nothing_old(age: float) -> None:
    driver = make_driver()
    run = driver.begin(PROMPT)
    driver.compute(run, 2)
    later(driver, 1.0)
    driver.cache.invalidate(ByAge(older_than_s=age))
    driver.compute(run)
    driver.end(run)
    assert driver.hit([*PROMPT, 1]) == (12 if age > 1.0 else 0)


@pytest.mark.parametrize("tail", [0, 3])
def test_a_new_run_takes_the_place_of_one_too_old(
    tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invalidation, "MAX_COUNTED", 1)
    monkeypatch.setattr(invalidation, "NODES_A_STEP", 0)
    driver = make_driver()
    prompt = PROMPT[: 2 * B + tail]
    driver.serve(prompt)
    later(driver, 10.0)
    receipt = driver.cache.invalidate(ByAge(older_than_s=5))
    assert receipt.is_upper_bound
    assert receipt.num_blocks >= 2
    driver.check()
    assert driver.hit([*prompt, 1]) == 0
    driver.serve(prompt)
    driver.check()
    assert driver.hit([*prompt, 1]) == 2 * B + (tail if tail >= 4 else 0)
    driver.fill(64)
    assert driver.cache.counts.free == 64


def test_what_is_too_old_takes_nobodys_place_among_the_compared() -> None:
    driver = CacheDriver(block_size=8, shares=True, clock=SettableClock(1_000.0))
    for number in range(4):
        driver.serve([1, 2, 3, 4, 5, 6, 100 + number])
    later(driver, 10.0)
    driver.cache.invalidate(ByAge(older_than_s=5))
    for number in range(4):
        driver.serve([1, 2, 3, 4, 5, 6, 200 + number])
        driver.check()
    for number in range(4):
        assert driver.hit([1, 2, 3, 4, 5, 6, 200 + number, 9]) == 7


def test_the_search_for_what_is_too_old_goes_on_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invalidation, "MAX_COUNTED", 2)
    monkeypatch.setattr(invalidation, "NODES_A_STEP", 2)
    driver = make_driver(num_blocks=200)
    for number in range(20):
        driver.serve(numbered(9, 50 * number))
    later(driver, 10.0)
    for number in range(20, 30):
        driver.serve(numbered(9, 50 * number))
    receipt = driver.cache.invalidate(ByAge(older_than_s=5))
    assert receipt.is_upper_bound
    assert receipt.num_blocks >= 40
    tree = driver.cache._trees.of(driver.fingerprint)
    assert tree.age_cursor
    for _ in range(60):
        driver.end(driver.acquire([7]))
    assert not tree.age_cursor
    assert [driver.hit(numbered(9, 50 * n)) for n in range(30)] == [0] * 20 + [8] * 10
    driver.fill(200 - 30)
    assert [driver.hit(numbered(9, 50 * n)) for n in range(20, 30)] == [8] * 10


def test_an_approval_of_old_blocks_goes_though_it_was_made_later() -> None:
    driver = make_driver()
    first = driver.approve(PROMPT, A)
    driver.serve([*PROMPT, *numbered(B, 100)], domain=BELOW)
    driver.cache.withdraw(first.approval_id)
    later(driver, 10.0)
    driver.approve(PROMPT, A, pinned=True)
    receipt = driver.cache.invalidate(ByAge(older_than_s=5))
    driver.check()
    assert (receipt.num_approvals, receipt.num_blocks) == (1, 4)
    assert driver.cache.approved.num_pinned_blocks == 0
    driver.fill(64)


def test_a_pinned_approval_is_no_running_request_in_a_receipt() -> None:
    driver = make_driver()
    driver.approve(PROMPT, A, pinned=True)
    run = driver.acquire([*PROMPT[:B], 1], BELOW)
    receipt = driver.cache.invalidate(Everything())
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (3, 1)
    driver.end(run)
    driver.fill(64)


def test_terms_are_kept_with_the_approval() -> None:
    terms = ApprovalTerms(label="rules", pinned=True, ttl_s=5)
    driver = make_driver()
    approval = driver.approve(PROMPT, A, label="rules", pinned=True, ttl_s=5)
    assert approval.terms == terms
