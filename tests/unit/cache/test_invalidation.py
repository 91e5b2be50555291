import pytest

from prefold.cache import Access, ByDomain, ByFingerprint, ByPrefix, Everything, Selector
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from support.cache_driver import A, CacheDriver, numbered
from support.fingerprints import make_fingerprint
from support.running import as_tokens

B = 4
PROMPT = numbered(12)
OTHER = make_fingerprint(block_size=B, weights=b"other")


def by_prefix(driver: CacheDriver, tokens: list[int]) -> ByPrefix:
    return ByPrefix(fingerprint=driver.fingerprint, domain=A, tokens=as_tokens(tokens))


def selectors(driver: CacheDriver) -> list[Selector]:
    return [
        Everything(),
        ByFingerprint(fingerprint=driver.fingerprint),
        ByDomain(domain=A, below=False),
        by_prefix(driver, PROMPT[:B]),
    ]


@pytest.mark.parametrize("index", range(4))
def test_nothing_covered_is_found_and_the_receipt_counts_it(index: int) -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    run = driver.acquire([*PROMPT[:8], 99])
    receipt = driver.cache.invalidate(selectors(driver)[index])
    driver.check()
    assert (receipt.num_blocks, receipt.num_leased_blocks) == (3, 2)
    assert not receipt.is_upper_bound
    assert receipt.num_invalidations == 1
    assert driver.hit([*PROMPT, 1]) == 0
    driver.end(run)
    assert driver.cache.invalidate(Everything()).num_invalidations == 2


@pytest.mark.parametrize("index", range(4))
def test_a_running_request_finishes_and_leaves_nothing(index: int) -> None:
    driver = CacheDriver(num_blocks=20, block_size=B)
    run = driver.begin([*PROMPT, *numbered(9, 100)])
    driver.compute(run, 6)
    fresh = driver.begin(PROMPT)
    driver.cache.invalidate(selectors(driver)[index])
    driver.check()
    driver.compute(run)
    driver.compute(fresh)
    driver.extend(run, numbered(6, 200))
    assert driver.hit([*PROMPT, 1]) == 0
    for forked in driver.fork(run, 2):
        driver.extend(forked, numbered(6, 300))
        driver.end(forked)
    driver.end(run)
    driver.end(fresh)
    assert driver.hit([*PROMPT, 1]) == 0
    driver.fill(20)
    assert driver.cache.counts.free == 20
    driver.serve(PROMPT)
    assert driver.hit([*PROMPT, 1]) == 12


def test_a_doomed_sequence_adopts_nothing_new() -> None:
    driver = CacheDriver(block_size=B)
    run = driver.begin(numbered(20))
    driver.compute(run, B)
    driver.cache.invalidate(Everything())
    driver.serve(numbered(20))
    assert driver.cache.adopt(run.lease, run.array, run.computed) == run.computed


def test_a_domain_is_one_path_and_one_salt() -> None:
    driver = CacheDriver(block_size=B)
    others = [Domain("b"), Domain("a/b"), Domain("a", salt=b"s")]
    for domain in (A, *others):
        driver.serve(PROMPT, domain=domain)
    driver.cache.invalidate(ByDomain(domain=A, below=False))
    assert driver.hit([*PROMPT, 1]) == 0
    assert [driver.hit([*PROMPT, 1], domain) for domain in others] == [12, 12, 12]


def test_a_fingerprint_is_one_tree() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    driver.cache.invalidate(ByFingerprint(fingerprint=OTHER))
    assert driver.hit([*PROMPT, 1]) == 12


def test_a_prefix_is_that_prefix_and_what_follows() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    driver.serve([*PROMPT[:B], *numbered(9, 100)])
    driver.serve(numbered(9, 500))
    receipt = driver.cache.invalidate(by_prefix(driver, PROMPT[: 2 * B + 3]))
    assert receipt.num_blocks == 2
    assert driver.hit([*PROMPT, 1]) == B
    assert driver.hit([*PROMPT[:B], *numbered(9, 100)]) == 3 * B
    assert driver.hit(numbered(9, 500)) == 2 * B


@pytest.mark.parametrize("is_split", [False, True])
def test_what_comes_before_a_prefixes_last_block_stays(*, is_split: bool) -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    shorter = driver.begin([*PROMPT[:B], *numbered(5, 90)])
    if not is_split:
        driver.end(shorter)
    receipt = driver.cache.invalidate(by_prefix(driver, PROMPT[: 2 * B]))
    assert receipt.num_blocks == 2
    driver.check()
    if is_split:
        driver.compute(shorter)
        driver.end(shorter)
        assert driver.hit([*PROMPT[:B], *numbered(5, 90)]) == 2 * B
    assert driver.hit([*PROMPT, 1]) == B


def test_blocks_of_forks_that_write_nothing_are_in_no_receipt() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    run = driver.begin([*PROMPT, *numbered(9, 50)], access=Access(read=True, write=False))
    driver.compute(run)
    assert driver.cache.invalidate(by_prefix(driver, PROMPT)).num_blocks == 1
    driver.end(run)


def test_an_unknown_prefix_is_nothing() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve(PROMPT)
    receipt = driver.cache.invalidate(by_prefix(driver, numbered(8, 900)))
    assert receipt.num_blocks == 0
    assert driver.hit([*PROMPT, 1]) == 12


def test_a_prefix_below_a_block_is_refused() -> None:
    driver = CacheDriver(block_size=B)
    with pytest.raises(InvalidInputError, match="at least one block, 4 tokens, got 3"):
        driver.cache.invalidate(by_prefix(driver, PROMPT[:3]))


def test_a_receipt_over_what_was_dropped_before_is_an_upper_bound() -> None:
    driver = CacheDriver(block_size=B)
    driver.serve([*PROMPT[:B], *numbered(8, 100)])
    driver.serve(PROMPT)
    run = driver.acquire([*PROMPT, 99])
    first = driver.cache.invalidate(by_prefix(driver, PROMPT))
    assert (first.num_blocks, first.is_upper_bound) == (1, False)
    driver.fill(driver.cache.counts.free + 1)
    second = driver.cache.invalidate(Everything())
    assert second.is_upper_bound, "what the running request holds is counted again"
    driver.end(run)


def test_throw_away_blocks_are_in_no_receipt() -> None:
    driver = CacheDriver(block_size=B)
    run = driver.begin(PROMPT)
    driver.cache.invalidate(Everything())
    driver.compute(run)
    receipt = driver.cache.invalidate(Everything())
    assert receipt.num_blocks == 0
    driver.end(run)


def test_many_invalidations_without_need_of_room_keep_no_list() -> None:
    driver = CacheDriver(num_blocks=64, block_size=B)
    tree = driver.cache._trees.of(driver.fingerprint)
    for number in range(150):
        run = driver.begin(numbered(9, 10 * number))
        driver.compute(run)
        driver.cache.invalidate(ByDomain(domain=A, below=False))
        driver.end(run)
    assert len(tree.dead.waiting()) <= 64
    assert len(tree.dead._stack) <= 200


def test_a_sequence_that_the_cache_was_told_less_of_is_covered_too() -> None:
    driver = CacheDriver(num_blocks=20, block_size=B)
    run = driver.begin(PROMPT[: B + 3])
    driver.compute(run, B + 3)
    # The next token, which completes the prefix, was sampled, and nobody has been told.
    driver.cache.invalidate(by_prefix(driver, PROMPT[: 2 * B]))
    driver.extend(run, [PROMPT[B + 3]])
    driver.end(run)
    driver.check()
    assert driver.hit([*PROMPT[: 2 * B], 1]) < 2 * B
