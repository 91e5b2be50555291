"""Prefixes approved for several domains, put into the tree by hand."""

import pytest

from prefold.cache import MissKind
from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain
from prefold.tree.invalidation import kill_subtree
from prefold.tree.mark import Mark
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.walk import Endpoint, longest_paths
from support.cache_driver import CacheDriver, numbered
from support.running import as_tokens
from support.slots import marks_of

B = 4
TEAM_DOMAIN = Domain("a")
EVERYBODY = Audience(AudienceKind.APPROVED, PUBLIC)
TEAM = Audience(AudienceKind.APPROVED, TEAM_DOMAIN)
STRANGER = Domain("x")
PREFIX = numbered(4 * B)


def approve(driver: CacheDriver, tokens: list[int], *path: Audience) -> None:
    """Publish ``tokens`` for the last of ``path``, below what the others have.

    Below another audience's run a real approval never stands; the walk must not mind.
    """
    tree, pool = driver.cache._trees.of(driver.fingerprint), driver.cache._pool
    array = as_tokens(tokens)
    full = len(tokens) // driver.size
    start = Endpoint(tree.root, 0, 0, 0)
    end = longest_paths(start, array, full, tree.view(path), driver.size)[0]
    node = tree.settle(end)
    tree.pin(node)
    ids = pool.allocate(full - end.position)
    size = driver.size
    marks = marks_of((0, 0), tokens[: full * size])[end.position * size :]
    driver.slots.marks[ids] = marks.reshape(-1, size)
    rest = array[end.position * driver.size : full * driver.size]
    node = tree.publish(node, tree.audiences.of(path[-1]), rest, ids)
    if path[-1].kind is AudienceKind.APPROVED:
        mark(node)
    tree.unpin(node)
    driver.check()


def mark(end: Node) -> None:
    """Let the readers of its audience read down to ``end``, as an approval does."""
    approval = Mark()
    for node in path_to(end):
        if node.readers is end.readers:
            node.marks |= {approval}


def lengths(driver: CacheDriver, tokens: list[int]) -> dict[str, int]:
    domains = [Domain("a"), Domain("a/b"), Domain("b"), Domain("a", salt=b"s"), PUBLIC]
    return {
        repr(domain): driver.lookup(tokens, domain).num_matched_tokens for domain in domains
    }


@pytest.mark.parametrize(
    ("audience", "readers"),
    [
        (EVERYBODY, {"a", "a/b", "b", "a salted", "public"}),
        (TEAM, {"a", "a/b", "a salted"}),
        (Audience(AudienceKind.OWN, TEAM_DOMAIN), {"a"}),
        (Audience(AudienceKind.OWN, Domain("a/b")), {"a/b"}),
        (Audience(AudienceKind.OWN, Domain("a", salt=b"s")), {"a salted"}),
        (Audience(AudienceKind.OWN, PUBLIC), {"public"}),
    ],
)
def test_who_reads_what(audience: Audience, readers: set[str]) -> None:
    driver = CacheDriver(block_size=B, shares=True)
    approve(driver, PREFIX, audience)
    names = ["a", "a/b", "b", "a salted", "public"]
    found = dict(zip(names, lengths(driver, [*PREFIX, 1]).values(), strict=True))
    assert found == {name: len(PREFIX) * (name in readers) for name in names}


def test_the_longest_path_wins_and_ties_go_to_the_wider() -> None:
    driver = CacheDriver(block_size=B, shares=True)
    driver.serve(PREFIX[: 2 * B], domain=TEAM_DOMAIN)
    own = driver.acquire([*PREFIX[: 2 * B], 1], TEAM_DOMAIN)
    approve(driver, PREFIX[: 2 * B], EVERYBODY)
    shared = driver.cache.acquire(
        driver.fingerprint, TEAM_DOMAIN, as_tokens([*PREFIX[: 2 * B], 1])
    )
    assert shared.node.readers.audience == EVERYBODY
    assert not set(shared.block_ids.tolist()) & set(own.lease.block_ids.tolist())
    driver.end(own)
    driver.serve(PREFIX, domain=Domain("a/b"))
    assert driver.lookup([*PREFIX, 1], Domain("a/b")).num_matched_tokens == 4 * B
    assert driver.lookup([*PREFIX, 1], TEAM_DOMAIN).num_matched_tokens == 2 * B


def test_audiences_never_widen_along_a_path() -> None:
    driver = CacheDriver(block_size=B, shares=True)
    approve(driver, PREFIX[: 2 * B], TEAM)
    tree = driver.cache._trees.of(driver.fingerprint)
    [node] = (tree.root.children or {}).values()
    tree.pin(node)
    ids = driver.cache._pool.allocate(1)
    wider = tree.audiences.of(EVERYBODY)
    below = tree.publish(node, wider, as_tokens(PREFIX[2 * B : 3 * B]), ids)
    mark(below)
    tree.unpin(below)
    assert driver.lookup([*PREFIX, 1], TEAM_DOMAIN).num_matched_tokens == 2 * B


def test_a_copy_may_come_from_a_narrower_path_of_equal_length() -> None:
    driver = CacheDriver(block_size=8, shares=True)
    prefix = numbered(16)
    driver.serve([*prefix, *numbered(6, 100)], domain=TEAM_DOMAIN)
    approve(driver, prefix, EVERYBODY)
    run = driver.begin([*prefix, *numbered(5, 100), 1], TEAM_DOMAIN)
    assert run.lease.node.readers.audience == EVERYBODY
    assert (run.lease.num_matched_tokens, run.lease.num_hit_tokens) == (16, 21)
    driver.compute(run)
    driver.end(run)


@pytest.mark.parametrize("tail", [[], [77], numbered(B + 1, 70), PREFIX[2 * B : 3 * B]])
def test_what_strangers_hang_below_a_shared_prefix_does_not_show(tail: list[int]) -> None:
    quiet, busy = (
        CacheDriver(block_size=B, shares=True),
        CacheDriver(block_size=B, shares=True),
    )
    for driver in (quiet, busy):
        approve(driver, PREFIX[: 3 * B], EVERYBODY)
    prompts = [PREFIX[: n * B] for n in (1, 2, 3)]
    for prompt in prompts:
        # Splits the shared run, hangs blocks below it, and leaves others to be evicted.
        busy.serve([*prompt, *numbered(2 * B + 3, 500)], domain=STRANGER)
        busy.acquire([*prompt, 999], STRANGER)
    for cut in range(1, 3 * B + 1):
        asked = [*PREFIX[:cut], *tail] or [1]
        for domain in (Domain("b"), PUBLIC):
            assert busy.lookup(asked, domain) == quiet.lookup(asked, domain)


def test_below_a_shared_prefix_only_an_agreement_is_a_divergence() -> None:
    driver = CacheDriver(block_size=B, shares=True)
    approve(driver, PREFIX, EVERYBODY)
    seen = driver.lookup([*PREFIX[: 2 * B], *numbered(2 * B, 500)], STRANGER)
    assert (seen.num_matched_tokens, seen.miss.kind) == (2 * B, MissKind.NEVER_SEEN)
    seen = driver.lookup([*PREFIX[: 2 * B + 1], *numbered(2 * B, 500)], STRANGER)
    assert (seen.miss.kind, seen.miss.at_token) == (MissKind.DIVERGED, 2 * B + 1)


def test_dropping_the_only_child_of_a_shared_node_leaves_it_evictable() -> None:
    driver = CacheDriver(num_blocks=10, block_size=B, shares=True)
    approve(driver, PREFIX, EVERYBODY)
    driver.serve([*PREFIX, *numbered(B, 900)], domain=STRANGER)
    tree = driver.cache._trees.of(driver.fingerprint)
    [top] = (tree.root.children or {}).values()
    [child] = (top.children or {}).values()
    kill_subtree(tree, child, at=0.0)
    driver.check()
    driver.fill(10)
    assert driver.cache.counts.free == 10
