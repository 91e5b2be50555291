"""What a lease's calls refuse, and that they then change nothing."""

import pytest

from prefold.blocks.table import BlockCopy
from prefold.cache import NO_CACHE, Access
from prefold.errors import (
    InvalidInputError,
    InvariantError,
    LeaseReleasedError,
    OutOfBlocksError,
    StateError,
)
from prefold.identity.domain import Domain
from support.cache_driver import CacheDriver, numbered
from support.running import Running, as_tokens
from support.tree_picture import picture


def test_every_call_on_a_released_lease_is_refused() -> None:
    driver = CacheDriver()
    run = driver.begin(numbered(6))
    driver.compute(run)
    driver.end(run)
    lease, tokens, cache = run.lease, run.array, driver.cache
    assert lease.is_released
    before = picture(cache)
    with pytest.raises(LeaseReleasedError):
        cache.release(lease, tokens, run.computed)
    with pytest.raises(LeaseReleasedError):
        cache.reserve(lease, 99)
    with pytest.raises(LeaseReleasedError):
        cache.copied(lease)
    with pytest.raises(LeaseReleasedError):
        cache.commit(lease, tokens, run.computed)
    with pytest.raises(LeaseReleasedError):
        cache.adopt(lease, tokens, run.computed)
    with pytest.raises(LeaseReleasedError):
        cache.fork(lease, tokens, run.computed, 1)
    assert picture(cache) == before


@pytest.mark.parametrize("computed", [-1, 3, 11, 13, 99])
def test_computed_out_of_range_is_refused_and_changes_nothing(computed: int) -> None:
    driver = CacheDriver(block_size=4)
    run = driver.begin(numbered(10))
    driver.compute(run, 4)
    driver.reserve(run, 12)
    cache, before = driver.cache, picture(driver.cache)
    tokens = as_tokens(numbered(10))
    for call in (cache.commit, cache.adopt, cache.release):
        with pytest.raises(InvalidInputError, match=r"from 4 \(published\) to 10"):
            call(run.lease, tokens, computed)
    with pytest.raises(InvalidInputError, match="from 4"):
        cache.fork(run.lease, tokens, computed, 1)
    assert picture(cache) == before
    driver.end(run)


def test_computed_beyond_the_reserved_blocks_is_refused() -> None:
    driver = CacheDriver(block_size=4)
    run = driver.begin(numbered(6))
    with pytest.raises(InvalidInputError, match="to 8"):
        driver.cache.commit(run.lease, as_tokens(numbered(20)), 9)


def test_tokens_of_another_type_are_refused_at_commit() -> None:
    driver = CacheDriver()
    run = driver.begin(numbered(6))
    with pytest.raises(InvalidInputError, match="int64"):
        driver.cache.commit(run.lease, run.array.astype("int32"), 4)


def test_copied_without_a_pending_copy_is_refused() -> None:
    driver = CacheDriver()
    run = driver.begin(numbered(6))
    with pytest.raises(StateError, match="no pending copy"):
        driver.cache.copied(run.lease)


def test_reserve_is_absolute_and_can_be_repeated() -> None:
    driver = CacheDriver(block_size=4)
    run = driver.acquire(numbered(6))
    for num_tokens, num_blocks in [(5, 2), (5, 2), (8, 2), (1, 2), (9, 3), (0, 3)]:
        driver.reserve(run, num_tokens)
        assert len(run.lease.block_ids) == num_blocks
    assert driver.cache.counts.private == 3


def test_out_of_blocks_says_both_numbers_and_changes_nothing() -> None:
    driver = CacheDriver(num_blocks=6, block_size=4)
    driver.serve(numbered(8))
    run = driver.begin(numbered(12, 100))
    before = picture(driver.cache)
    with pytest.raises(OutOfBlocksError) as refused:
        driver.cache.reserve(run.lease, 7 * 4)
    assert (refused.value.num_needed, refused.value.num_available) == (4, 3)
    assert picture(driver.cache) == before
    assert driver.cache.room.num_available(Domain("a")) == 3


def test_no_cache_neither_reads_nor_leaves_anything() -> None:
    driver = CacheDriver(block_size=4)
    driver.serve(numbered(9))
    idle = driver.cache.counts.idle
    run = driver.begin(numbered(14), access=NO_CACHE)
    assert run.lease.num_hit_tokens == 0
    driver.compute(run)
    assert driver.hit(numbered(14)) == 8
    driver.end(run)
    assert driver.hit(numbered(14)) == 8
    assert driver.cache.counts.idle == idle


def test_read_only_hits_and_leaves_nothing() -> None:
    driver = CacheDriver(block_size=4)
    driver.serve(numbered(9))
    run = driver.begin(numbered(14), access=Access(read=True, write=False))
    assert run.lease.num_hit_tokens == 8
    driver.compute(run)
    driver.end(run)
    assert driver.hit(numbered(14)) == 8


def test_write_only_misses_and_its_blocks_are_those_that_were_there() -> None:
    driver = CacheDriver(block_size=4)
    driver.serve(numbered(9))
    idle = driver.cache.counts.idle
    run = driver.begin(numbered(14), access=Access(read=False, write=True))
    assert run.lease.num_hit_tokens == 0
    driver.compute(run)
    driver.end(run)
    assert driver.hit(numbered(14)) == 12
    # One more whole block, which supersedes the first tail, and a tail of its own.

    assert driver.cache.counts.idle == idle + 1


def pending(run: Running) -> BlockCopy | None:
    return run.lease.pending_copy


def start_copy(driver: CacheDriver) -> Running:
    driver.serve(numbered(17))
    run = driver.acquire([*numbered(13), *numbered(4, 900)])
    assert (run.lease.num_matched_tokens, run.lease.num_hit_tokens) == (8, 13)
    return run


def test_the_copys_target_is_known_once_it_is_reserved() -> None:
    driver = CacheDriver(block_size=8)
    run = start_copy(driver)
    assert pending(run) is None
    driver.reserve(run, 17)
    order = pending(run)
    assert order is not None
    assert (order.target, order.num_tokens) == (run.lease.block_ids[1], 5)
    assert driver.cache.counts.shared == 2, "the source is pinned, and no more than it"
    driver.carry_out(run)
    assert pending(run) is None
    assert run.lease.num_hit_tokens == 13
    assert driver.cache.counts.shared == 1
    driver.end(run)


def test_a_pending_copy_pins_one_block_of_a_long_run() -> None:
    driver = CacheDriver(block_size=8)
    driver.serve([*numbered(16), *numbered(32, 100)])
    driver.serve([*numbered(16), *numbered(32, 200)])
    for inside in (21, 5):  # in a child's run, and in the middle of a run
        other = [*numbered(16), *numbered(32, 100)][:inside]
        run = driver.acquire([*other, *numbered(4, 900)])
        assert run.lease.num_hit_tokens == inside
        assert driver.cache.counts.shared == inside // 8 + 1
        driver.end(run)


def test_a_lease_with_a_pending_copy_is_not_forked() -> None:
    driver = CacheDriver(block_size=8)
    run = start_copy(driver)
    with pytest.raises(StateError, match="pending copy"):
        driver.cache.fork(run.lease, run.array, 8, 1)


def test_pending_copies_are_dropped_before_blocks_run_out() -> None:
    driver = CacheDriver(num_blocks=6, block_size=8)
    run = start_copy(driver)
    driver.reserve(run, 24)
    other = driver.acquire(numbered(3, 500))
    driver.reserve(other, 8)
    assert pending(run) is not None
    driver.reserve(other, 24)  # the third block is the one the source pinned
    assert pending(run) is None
    assert run.lease.num_hit_tokens == run.lease.num_matched_tokens == 8
    driver.compute(run)
    driver.end(run)
    driver.end(other)


def test_a_copy_left_behind_is_dropped_by_the_release() -> None:
    driver = CacheDriver(block_size=8)
    run = start_copy(driver)
    driver.end(run)
    assert driver.cache.counts.shared == 0


def test_a_copy_is_not_ordered_into_a_block_that_was_published_meanwhile() -> None:
    driver = CacheDriver(block_size=8)
    run = start_copy(driver)
    driver.reserve(run, 17)
    driver.compute(run)  # by itself, from the whole blocks on
    assert pending(run) is None
    driver.end(run)


def test_adopting_past_a_pending_copys_own_source() -> None:
    # The prompt's last token keeps the whole block from being matched, so it is copied
    # from; then the sequence goes on, and what follows that block is adopted.
    driver = CacheDriver(block_size=8)
    driver.serve(numbered(25))
    run = driver.acquire(numbered(16))
    assert (run.lease.num_matched_tokens, run.lease.num_hit_tokens) == (8, 15)
    run.tokens = numbered(25)
    run.computed = driver.cache.adopt(run.lease, run.array, 8)
    assert run.computed == 24
    driver.check()
    driver.end(run)
    assert driver.shape() == [[3], [1]]


def test_an_unpin_too_many_is_found() -> None:
    driver = CacheDriver()
    driver.serve(numbered(9))
    run = driver.acquire(numbered(9))
    tree = run.lease.tree
    tree.unpin(run.lease.node)
    with pytest.raises(InvariantError, match="more often than pinned"):
        tree.unpin(run.lease.node)


def test_a_fork_without_room_leaves_none_behind() -> None:
    driver = CacheDriver(num_blocks=4, block_size=4)
    run = driver.begin(numbered(10))
    driver.compute(run)
    with pytest.raises(OutOfBlocksError):
        driver.cache.fork(run.lease, run.array, run.computed, 2)
    driver.check()
    assert driver.cache.snapshot().num_leases == 1
    [fork] = driver.fork(run, 1)
    driver.end(fork)
    driver.end(run)


def test_fewer_than_one_fork_is_refused() -> None:
    driver = CacheDriver()
    run = driver.begin(numbered(10))
    with pytest.raises(InvalidInputError, match="at least 1, got 0"):
        driver.cache.fork(run.lease, run.array, 0, 0)


@pytest.mark.parametrize("writes", [True, False])
def test_forks_share_all_full_blocks_and_copy_the_tail(*, writes: bool) -> None:
    driver = CacheDriver(block_size=4)
    run = driver.begin(numbered(10), access=Access(read=True, write=writes))
    driver.compute(run)
    forks = driver.fork(run, 3)
    for fork in forks:
        assert fork.lease.block_ids[:2].tolist() == run.lease.block_ids[:2].tolist()
        assert fork.lease.block_ids[2] != run.lease.block_ids[2]
    for token, fork in enumerate([run, *forks]):
        driver.extend(fork, [100 + token, 0, 0])
    assert driver.hit(numbered(10)) == (8 if writes else 0)
    for fork in [forks[1], run, forks[0], forks[2]]:
        driver.end(fork)
    assert driver.cache.counts.shared == driver.cache.counts.private == 0
    if not writes:
        assert driver.cache.counts.idle == 0, "a throw-away node outlived its leases"


def test_a_fork_at_a_block_edge_needs_no_copy() -> None:
    driver = CacheDriver(block_size=4)
    run = driver.begin(numbered(8))
    driver.compute(run)
    [fork] = driver.cache.fork(run.lease, run.array, 8, 1)
    assert fork.copy is None
    assert fork.lease.block_ids.tolist() == run.lease.block_ids.tolist()
