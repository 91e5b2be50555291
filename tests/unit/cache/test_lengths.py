"""Prompts of every awkward length, and prompts that differ at every position."""

import numpy as np
import pytest

from prefold.cache import MissKind, PrefixCache
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from support.cache_driver import A, CacheDriver, numbered
from support.clock import TickingClock
from support.fingerprints import make_fingerprint
from support.running import as_tokens

B = 8


@pytest.mark.parametrize(
    "length", [1, 2, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 10 * B]
)
def test_one_prompt_three_times_hits_all_but_the_last_token(length: int) -> None:
    driver = CacheDriver(block_size=B)
    prompt = numbered(length)
    whole = (length - 1) // B * B
    # The rest of the last block is copied if it is four tokens or more.
    rest = length - 1 - whole
    expected = whole + (rest if rest >= 4 else 0)
    assert [driver.serve(prompt) for _ in range(3)] == [0, expected, expected]
    more = [*prompt, 999]
    assert (length // B) * B <= driver.serve(more) <= length
    for short in (1, B, length - B, length - 1):
        if 0 < short < length:
            hit = driver.serve(prompt[:short])
            assert (short - 1) // B * B <= hit <= short - 1


@pytest.mark.parametrize("position", range(3 * B))
def test_a_changed_token_leaves_exactly_the_tokens_before_it(position: int) -> None:
    driver = CacheDriver(block_size=B)
    prompt = numbered(3 * B)
    driver.serve(prompt)
    changed = list(prompt)
    changed[position] = 999
    inside = position % B
    expected = position - (inside if inside < 4 else 0)
    seen = driver.lookup(changed)
    # The last token is never matched, so there a change loses nothing.
    assert seen.num_hit_tokens == expected
    if position < 3 * B - 1:
        goes_on = inside or position
        assert seen.miss.kind is (MissKind.DIVERGED if goes_on else MissKind.NEVER_SEEN)
        assert seen.miss.at_token == position
    else:
        assert seen.miss.kind is MissKind.COMPLETE
    source = driver.slots.marks.copy()
    run = driver.begin(changed)
    driver.compute(run)
    driver.end(run)
    held = [block for block in range(64) if source[block, 0] != -1]
    assert (driver.slots.marks[held] == source[held]).all(), "a source was written"
    assert driver.serve(prompt) >= (3 * B - 1) // B * B


def test_a_512_token_prompt_is_32_blocks_held_by_both() -> None:
    driver = CacheDriver(num_blocks=200, block_size=16)
    system = numbered(512)
    driver.serve([*system, 7001])
    one = driver.begin([*system, *numbered(40, 8000)])
    other = driver.begin([*system, *numbered(40, 9000)])
    assert one.lease.num_matched_tokens == other.lease.num_matched_tokens == 512
    assert one.lease.block_ids[:32].tolist() == other.lease.block_ids[:32].tolist()
    assert driver.cache.counts.shared == 32
    driver.compute(one)
    driver.compute(other)
    mine, theirs = set(one.lease.block_ids.tolist()), set(other.lease.block_ids.tolist())
    assert len(mine & theirs) == 32
    driver.end(one)
    driver.end(other)


def test_history_that_was_cut_and_continued_leaves_the_old_content_right() -> None:
    driver = CacheDriver(block_size=B)
    old = numbered(2 * B + 5)
    driver.serve(old, reply=[501, 502])
    cut = [*old[: 2 * B + 2], *numbered(9, 700)]
    driver.serve(cut, reply=[601])
    assert driver.hit([*old, 501, 502]) == 2 * B + 6
    assert driver.hit([*cut, 601]) == 3 * B
    driver.serve([*old, 501, 502])


def test_a_pool_of_64_serves_500_prompts_of_4_blocks() -> None:
    driver = CacheDriver(num_blocks=64, block_size=4)
    for number in range(500):
        tokens = as_tokens(numbered(16, 100 * number))
        lease = driver.cache.acquire(driver.fingerprint, A, tokens)
        driver.cache.reserve(lease, 16)
        driver.cache.release(lease, tokens, 16)
        counts = driver.cache.counts
        assert (counts.private, counts.shared) == (0, 0)
        assert counts.free + counts.idle == 64
    driver.check()
    assert driver.cache.snapshot().num_evictions > 0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([], dtype=np.int64), "empty"),
        (np.array([1, -2]), "negative"),
        (np.array([1, 2], dtype=np.int32), "int64"),
        (np.array([[1, 2]]), "2 dimensions"),
    ],
)
def test_senseless_tokens_are_refused(tokens: np.ndarray, message: str) -> None:
    driver = CacheDriver()
    with pytest.raises(InvalidInputError, match=message):
        driver.cache.acquire(driver.fingerprint, A, tokens)
    with pytest.raises(InvalidInputError, match=message):
        driver.cache.lookup(driver.fingerprint, A, tokens)
    assert driver.cache.snapshot().num_leases == 0


def test_a_fingerprint_of_another_block_size_is_refused() -> None:
    driver = CacheDriver(block_size=4)
    foreign = make_fingerprint(block_size=8)
    with pytest.raises(InvalidInputError, match="blocks of 4 tokens, the fingerprint is"):
        driver.cache.lookup(foreign, A, as_tokens([1]))


def test_a_cache_without_block_size_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="block_size must be at least 1, got 0"):
        PrefixCache(num_blocks=1, block_size=0, clock=TickingClock())


@pytest.mark.parametrize(("block_size", "hit"), [(4, 12), (8, 12), (16, 12)])
def test_domains_and_salts_share_nothing(block_size: int, hit: int) -> None:
    driver = CacheDriver(block_size=block_size)
    prompt = numbered(13)
    domains = [
        Domain("a"),
        Domain("b"),
        Domain("a/b"),
        Domain("a", salt=b"b"),
        Domain("a", salt=b"c"),
        Domain("public"),
        Domain("public", salt=b"b"),
    ]
    for domain in domains:
        assert driver.serve(prompt, domain=domain) == 0
    for domain in domains:
        assert driver.serve(prompt, domain=domain) == hit
