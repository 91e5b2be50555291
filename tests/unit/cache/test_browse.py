"""Browsing shows what is there, a bounded number of runs at a time, and changes nothing."""

from __future__ import annotations

import gc
from unittest.mock import patch

import pytest

from prefold.cache import ByDomain, ByPrefix, Everything, PageCursor, RunPage, browse
from prefold.errors import InvalidInputError
from prefold.identity.domain import PUBLIC, AudienceKind, Domain
from prefold.tree.retention import Retention
from support.cache_driver import A, CacheDriver, numbered
from support.running import as_tokens

B = 4
SEARCH, OTHER = Domain("a/search"), Domain("b")


def children(
    driver: CacheDriver,
    parent: str | None = None,
    *,
    limit: int = 50,
    cursor: PageCursor | None = None,
) -> RunPage:
    page = driver.cache.browser.children(
        parent, limit=limit, num_text_tokens=B, cursor=cursor
    )
    assert page is not None
    driver.cache.browser.check_invariants()
    return page


def firsts(page: RunPage) -> list[int]:
    return [int(run.token_ids[0]) for run in page.runs]


def serve_many(driver: CacheDriver, num_prompts: int) -> None:
    for number in range(num_prompts):
        driver.serve(numbered(B, 100 * (number + 1)))


# -- pages -----------------------------------------------------------------------------


def test_an_empty_cache_has_no_runs() -> None:
    page = children(CacheDriver())
    assert (page.runs, page.num_children, page.following) == ((), 0, None)


def test_a_run_is_described_as_it_is_kept() -> None:
    driver = CacheDriver()
    keeping = Retention(ttl_s=500.0, priority=7)
    driver.serve(numbered(2 * B), domain=Domain("a", b"salt"), retention=keeping)
    driver.begin([*numbered(2 * B), 1], Domain("a", b"salt"))
    [run] = children(driver).runs
    assert (run.start, run.num_tokens, run.num_blocks, run.is_partial) == (0, 8, 2, False)
    assert (run.kind, run.domain, run.is_salted) == (AudienceKind.OWN, "a", True)
    assert (run.priority, run.num_hits, run.num_leases) == (7, 1, 1)
    assert (run.path, run.approvals, run.is_pinned, run.is_pin) == ((), (), False, False)
    # It has an end of its own until somebody without one uses it.
    assert run.expires_in_s is None
    assert run.age_s > run.idle_s >= 0
    assert run.token_ids.tolist() == numbered(B)
    assert "salt" not in repr(run).replace("is_salted", "")


def test_what_ends_by_itself_says_when() -> None:
    driver = CacheDriver()
    driver.serve(numbered(B), retention=Retention(ttl_s=500.0))
    [run] = children(driver).runs
    assert run.expires_in_s is not None
    assert 0 < run.expires_in_s < 500


def test_children_come_newest_first_with_the_way_to_them() -> None:
    driver = CacheDriver()
    for start in (100, 200, 300):
        driver.serve([*numbered(B), *numbered(B, start)])
    [top] = children(driver).runs
    below = children(driver, top.handle)
    assert firsts(below) == [300, 200, 100]
    assert all(run.path == (top.handle,) and run.start == B for run in below.runs)
    assert (top.num_children, below.num_children) == (3, 3)


@pytest.mark.parametrize("limit", [1, 3, 10, 50])
def test_pages_show_every_run_once(limit: int) -> None:
    driver = CacheDriver(256)
    serve_many(driver, 10)
    driver.serve(numbered(2, 5_000))
    driver.serve(numbered(2, 6_000))
    shown, cursor = [], None
    while True:
        page = children(driver, limit=limit, cursor=cursor)
        assert len(page.runs) <= limit
        shown += firsts(page)
        cursor = page.following
        if cursor is None:
            break
        cursor = PageCursor.from_text(cursor.to_text())
    assert shown == [*range(1000, 0, -100), 5_000, 6_000]


def test_what_comes_or_goes_between_pages_hides_nothing() -> None:
    driver = CacheDriver(256)
    serve_many(driver, 9)
    first = children(driver, limit=3)
    assert firsts(first) == [900, 800, 700]
    driver.serve(numbered(B, 5_000))
    for gone in (800, 500, 100):
        driver.cache.invalidate(
            ByPrefix(
                fingerprint=driver.fingerprint,
                domain=A,
                tokens=as_tokens(numbered(B, gone)),
            )
        )
    driver.cache.room.sweep()
    second = children(driver, limit=50, cursor=first.following)
    assert {600, 400, 300, 200} <= set(firsts(second)) <= set(range(200, 901, 100))


def test_dead_runs_are_passed_over_and_not_without_end() -> None:
    driver = CacheDriver(256)
    serve_many(driver, 4)
    driver.cache.invalidate(ByDomain(domain=A))
    driver.serve(numbered(B, 5_000), domain=OTHER)
    assert firsts(children(driver, limit=1)) == [5_000]
    serve_many(driver, 1)
    with patch.object(browse, "MAX_PASSED_OVER", 0):
        page = children(driver, limit=3)
        assert firsts(page) == [100, 5_000]
        assert page.following is not None
        assert children(driver, limit=3, cursor=page.following).runs == ()


def test_a_run_whose_time_is_over_is_not_shown() -> None:
    driver = CacheDriver()
    driver.serve(numbered(B), retention=Retention(ttl_s=1e-9))
    assert children(driver).runs == ()


def test_browsing_changes_nothing() -> None:
    driver = CacheDriver()
    driver.serve(numbered(3 * B))
    before = driver.cache.snapshot(), driver.cache.version(driver.fingerprint)
    [run] = children(driver).runs
    driver.cache.browser.run(run.handle, num_text_tokens=B)
    driver.cache.browser.content(run.handle)
    driver.cache.browser.find_domain("a", limit=9, num_text_tokens=0)
    driver.check()
    assert (driver.cache.snapshot(), driver.cache.version(driver.fingerprint)) == before
    run.token_ids[:] = 7
    assert driver.hit([*numbered(3 * B), 1]) == 3 * B


@pytest.mark.parametrize(
    "text", ["", "1", "0.x1", "0.w", "0.w1 ", "-1.w1", "0.w" + "1" * 13]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="cursor"):
        PageCursor.from_text(text)


# -- handles ---------------------------------------------------------------------------


def test_a_handle_outlives_a_split_and_a_merge() -> None:
    driver = CacheDriver()
    driver.serve(numbered(4 * B))
    [whole] = children(driver).runs
    branch = driver.begin([*numbered(2 * B), *numbered(B, 500)])
    lower = driver.cache.browser.run(whole.handle, num_text_tokens=0)
    assert lower is not None
    # In a split the lower half stays the same node.
    assert (lower.start, lower.num_tokens) == (2 * B, 2 * B)
    assert len(lower.path) == 1
    driver.end(branch)


def test_a_handle_of_what_is_gone_names_nothing() -> None:
    driver = CacheDriver()
    driver.serve(numbered(B))
    [run] = children(driver).runs
    driver.cache.invalidate(Everything())
    browser = driver.cache.browser
    assert browser.children(run.handle, limit=1, num_text_tokens=0) is None
    assert browser.run(run.handle, num_text_tokens=0) is None
    assert browser.content(run.handle) is None
    assert not browser.pin(run.handle, 0)
    assert not browser.unpin(run.handle)
    for handle in ("", "0-1", f"{run.handle}0"):
        assert browser.run(handle, num_text_tokens=0) is None


def test_what_hangs_below_something_dropped_is_gone_too() -> None:
    driver = CacheDriver()
    for start in (100, 200):
        driver.serve([*numbered(B), *numbered(B, start)])
    [top] = children(driver).runs
    [below, _] = children(driver, top.handle).runs
    driver.cache.invalidate(
        ByPrefix(fingerprint=driver.fingerprint, domain=A, tokens=as_tokens(numbered(B)))
    )
    assert driver.cache.browser.run(below.handle, num_text_tokens=0) is None


def test_to_be_looked_at_keeps_nothing_alive() -> None:
    driver = CacheDriver(64)
    serve_many(driver, 10)
    children(driver)
    assert len(driver.cache.browser._nodes) == 10
    driver.fill(64)
    gc.collect()
    # The eviction queue may still remember the last one.
    assert len(driver.cache.browser._nodes) <= 1
    driver.cache.browser.check_invariants()


def test_handles_of_two_caches_differ() -> None:
    handles = set()
    for _ in range(2):
        driver = CacheDriver()
        driver.serve(numbered(B))
        handles.add(children(driver).runs[0].handle)
    assert len(handles) == 2


def test_the_content_of_a_run_is_all_that_leads_to_it() -> None:
    driver = CacheDriver()
    for start in (100, 200):
        driver.serve([*numbered(2 * B), *numbered(2 * B, start)], domain=SEARCH)
    [top] = children(driver).runs
    [second, _] = children(driver, top.handle).runs
    content = driver.cache.browser.content(second.handle)
    assert content is not None
    assert content.token_ids.tolist() == [*numbered(2 * B), *numbered(2 * B, 200)]
    assert content.entry_ids.tolist() == [*numbered(2 * B), *numbered(B, 200)]
    assert (content.domain, content.kind) == (SEARCH, AudienceKind.OWN)
    assert content.fingerprint == driver.fingerprint
    assert "200" not in repr(content)


# -- searches --------------------------------------------------------------------------


def test_domains_are_found_by_a_part_of_their_path() -> None:
    driver = CacheDriver(shares=True)
    driver.serve(numbered(B, 100), domain=A)
    driver.serve(numbered(B, 200), domain=SEARCH)
    driver.serve(numbered(B, 300), domain=OTHER)
    for _ in range(3):
        driver.serve([*numbered(B, 200), 1], domain=SEARCH)
    browser = driver.cache.browser

    def found(text: str) -> list[str]:
        result = browser.find_domain(text, limit=9, num_text_tokens=0)
        assert result.is_complete
        assert all(each.num_matched_tokens is None for each in result.found)
        return [each.run.domain for each in result.found if not each.run.is_partial]

    # Most hits first.
    assert found("a") == ["a/search", "a"]
    assert found("search") == ["a/search"]
    assert found("b") == ["b"]
    assert found("nobody") == []
    assert not browser.find_domain("", limit=1, num_text_tokens=0).is_complete


def test_a_search_says_when_it_has_not_looked_at_everything() -> None:
    driver = CacheDriver(256)
    for number in range(20):
        driver.serve(numbered(B, 100 * (number + 1)), domain=Domain(f"d{number}"))
    with patch.object(browse, "MAX_LOOKED_AT", 10):
        result = driver.cache.browser.find_domain("d", limit=50, num_text_tokens=0)
        assert not result.is_complete
        assert 0 < len(result.found) <= 10
        prefix = driver.cache.browser.find_prefix(
            driver.fingerprint,
            as_tokens(numbered(B, 2_000)),
            limit=9,
            num_text_tokens=0,
        )
        assert not prefix.is_complete


def ends(driver: CacheDriver, tokens: list[int], domain: str = "") -> set[tuple[str, int]]:
    result = driver.cache.browser.find_prefix(
        driver.fingerprint, as_tokens(tokens), domain=domain, limit=9, num_text_tokens=0
    )
    assert result.is_complete
    matched = [each.num_matched_tokens or 0 for each in result.found]
    assert matched == sorted(matched, reverse=True)
    return {(each.run.domain, each.num_matched_tokens or 0) for each in result.found}


def test_a_prompt_leads_to_everybodys_runs_that_begin_so() -> None:
    driver = CacheDriver(256, shares=True)
    prompt = numbered(4 * B)
    driver.serve(prompt, domain=A)
    driver.serve(prompt[: 2 * B], domain=SEARCH)
    driver.serve(numbered(B, 500), domain=OTHER)
    assert ends(driver, prompt) == {("a", 4 * B), ("a/search", 2 * B)}
    assert ends(driver, prompt, "search") == {("a/search", 2 * B)}
    # Inside a run, and parting from it inside a block.
    assert ends(driver, prompt[: 3 * B + 1]) == {("a", 3 * B + 1), ("a/search", 2 * B)}
    parted = [*prompt[: B + 2], 900, 901, 902]
    assert ends(driver, parted) == {("a", B + 2), ("a/search", B + 2)}
    # Less than a block.
    assert ends(driver, prompt[:2]) == {("a", 2), ("a/search", 2)}
    assert ends(driver, [77, 78]) == set()


def test_a_prompt_goes_on_from_approved_runs_to_their_readers_own() -> None:
    driver = CacheDriver(256, shares=True)
    shared = numbered(2 * B)
    driver.approve(shared, PUBLIC, label="rules")
    driver.serve([*shared, *numbered(B, 100)], domain=A)
    assert ends(driver, [*shared, *numbered(B, 100)]) == {("a", 3 * B), ("public", 2 * B)}
    [found] = driver.cache.browser.find_prefix(
        driver.fingerprint, as_tokens(shared), domain="public", limit=9, num_text_tokens=0
    ).found
    assert [each.label for each in found.run.approvals] == ["rules"]


def test_a_search_needs_tokens() -> None:
    driver = CacheDriver()
    with pytest.raises(InvalidInputError):
        driver.cache.browser.find_prefix(
            driver.fingerprint, as_tokens([]), limit=1, num_text_tokens=0
        )


# -- one kind --------------------------------------------------------------------------


def test_a_prefix_of_one_kind_leaves_the_other_alone() -> None:
    prompt = numbered(2 * B)
    for kind, hits in ((AudienceKind.OWN, 2 * B), (AudienceKind.APPROVED, 0)):
        driver = CacheDriver(shares=True)
        driver.serve(prompt, domain=A)
        driver.approve(prompt, A)
        receipt = driver.cache.invalidate(
            ByPrefix(
                fingerprint=driver.fingerprint,
                domain=A,
                kind=kind,
                tokens=as_tokens(prompt[:B]),
            )
        )
        driver.check()
        assert receipt.num_blocks == 2
        # Alice reads what is approved only; what is a's own stays a's.
        assert driver.hit([*prompt, 1], Domain("a/alice")) == hits
        assert driver.hit([*prompt, 1], A) == 2 * B
        assert receipt.num_approvals == (kind is AudienceKind.APPROVED)
