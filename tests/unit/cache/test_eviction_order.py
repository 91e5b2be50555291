"""Which blocks go when room is needed, and what keeps them."""

from prefold.cache import NO_CACHE, ByDomain, ByPrefix
from prefold.identity.domain import Domain
from prefold.tree.invalidation import kill_subtree
from support.cache_driver import A, CacheDriver, numbered
from support.running import as_tokens
from support.tree_picture import picture

B = 4


def in_chunks(driver: CacheDriver, tokens: list[int], chunk: int) -> None:
    run = driver.begin(tokens)
    for end in range(run.computed + chunk, len(tokens) + 1, chunk):
        driver.compute(run, end)
    driver.end(run)


def test_the_tail_goes_and_the_head_stays() -> None:
    driver = CacheDriver(num_blocks=10, block_size=B)
    in_chunks(driver, numbered(8 * B), 2 * B)
    driver.serve(numbered(4 * B, 500))
    assert driver.hit([*numbered(8 * B), 1]) == 6 * B


def test_the_tail_goes_also_where_the_first_half_was_used_last() -> None:
    driver = CacheDriver(num_blocks=10, block_size=B)
    in_chunks(driver, numbered(8 * B), 2 * B)
    run = driver.acquire([*numbered(4 * B), 999])
    driver.end(run)
    driver.serve(numbered(4 * B, 500))
    assert driver.hit([*numbered(8 * B), 1]) == 6 * B


def test_the_least_recently_used_of_several_goes() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    prompts = [numbered(2 * B, 100 * n) for n in range(1, 4)]
    for prompt in prompts:
        driver.serve(prompt)
    driver.serve(prompts[0])
    driver.fill(2)
    hits = [driver.lookup([*prompt, 1]).num_matched_tokens for prompt in prompts]
    assert hits == [2 * B, 0, 2 * B]


def test_what_was_released_last_was_used_last() -> None:
    driver = CacheDriver(num_blocks=4, block_size=B)
    long_running, short = numbered(2 * B), numbered(2 * B, 500)
    run = driver.begin(long_running)
    driver.compute(run)
    driver.serve(short)
    driver.end(run)
    driver.fill(2)
    hits = [
        driver.lookup([*tokens, 1]).num_matched_tokens for tokens in (long_running, short)
    ]
    assert hits == [2 * B, 0]


def test_asking_keeps_nothing_alive_and_changes_nothing() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    prompts = [numbered(2 * B, 100 * n) for n in range(1, 4)]
    for prompt in prompts:
        driver.serve(prompt)
    run = (
        driver.begin(numbered(3, 900), access=NO_CACHE)
        if driver.cache.counts.free
        else None
    )
    assert run is None
    before = picture(driver.cache)
    for _ in range(50):
        driver.lookup([*prompts[0], 1])
        driver.lookup([*prompts[1][:6], 1], Domain("b"))
        driver.cache.version(driver.fingerprint)
        driver.cache.keys.of(driver.fingerprint, A, as_tokens(prompts[0]))
    assert picture(driver.cache) == before
    driver.fill(2)
    hits = [driver.lookup([*prompt, 1]).num_matched_tokens for prompt in prompts]
    assert hits == [0, 2 * B, 2 * B]


def test_asking_about_an_unknown_fingerprint_leaves_no_tree() -> None:
    driver = CacheDriver()
    before = picture(driver.cache)
    driver.lookup(numbered(9))
    assert driver.cache.version(driver.fingerprint) == 0
    assert picture(driver.cache) == before


def test_what_a_lease_holds_is_never_evicted() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    driver.serve(numbered(2 * B))
    run = driver.acquire([*numbered(2 * B), 1])
    driver.serve(numbered(2 * B, 500))
    driver.fill(4)
    driver.check()
    assert driver.hit([*numbered(2 * B), 1]) == 2 * B
    driver.end(run)


def test_only_as_many_blocks_go_as_are_needed() -> None:
    driver = CacheDriver(num_blocks=10, block_size=B)
    driver.serve(numbered(8 * B))
    run = driver.acquire(numbered(1, 900))
    driver.reserve(run, 3 * B)
    snapshot = driver.cache.snapshot()
    assert (snapshot.num_evictions, snapshot.num_evicted_blocks) == (1, 1)
    assert driver.cache.counts.free == 0


def test_invalidated_blocks_go_before_any_that_can_still_hit() -> None:
    driver = CacheDriver(num_blocks=6, block_size=B)
    driver.serve(numbered(2 * B))
    driver.serve(numbered(4 * B, 500), domain=Domain("b"))
    driver.cache.invalidate(ByDomain(domain=Domain("b")))
    run = driver.acquire(numbered(1, 900))
    driver.reserve(run, 4 * B)
    driver.check()
    assert driver.hit([*numbered(2 * B), 1]) == 2 * B
    assert driver.cache.snapshot().num_evictions == 0


def test_sweeping_takes_leaves_first_and_no_more_than_needed() -> None:
    driver = CacheDriver(num_blocks=8, block_size=B)
    for branch in (100, 200, 300):
        driver.serve([*numbered(2 * B), *numbered(2 * B, branch)])
    driver.cache.invalidate(
        ByPrefix(fingerprint=driver.fingerprint, domain=A, tokens=as_tokens(numbered(B)))
    )
    for _ in range(4):
        run = driver.acquire(numbered(1, 900), Domain("z"))
        driver.reserve(run, 2 * B)
    driver.check()
    assert driver.cache.counts.free == 0


def test_a_parent_can_go_once_its_children_have() -> None:
    driver = CacheDriver(num_blocks=8, block_size=B)
    for branch in (100, 200):
        driver.serve([*numbered(2 * B), *numbered(3 * B, branch)])
    driver.fill(8)
    assert driver.cache.counts.free == 8
    assert driver.shape() == []


def test_a_dropped_child_leaves_a_parent_that_can_go() -> None:
    driver = CacheDriver(num_blocks=8, block_size=B)
    driver.serve([*numbered(2 * B), *numbered(B, 100)])
    driver.serve([*numbered(2 * B), *numbered(B, 200)])
    tree = driver.cache._trees.of(driver.fingerprint)
    [top] = (driver.root.children or {}).values()
    for child in list((top.children or {}).values()):
        kill_subtree(tree, child, at=0.0)
    driver.check()
    driver.fill(8)
