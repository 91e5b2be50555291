"""Runs, splits and merges as sequences come and go: which nodes there are."""

from itertools import permutations

import pytest

from prefold.cache import Access
from prefold.tree.invalidation import kill_subtree
from support.cache_driver import CacheDriver, numbered
from support.running import Running
from support.settable_clock import SettableClock


def test_a_conversation_block_by_block_is_one_node_and_stays_one() -> None:
    driver = CacheDriver(block_size=4)
    prompt, reply = numbered(21), numbered(20, 100)
    for _ in range(3):
        driver.serve(prompt, reply)
        # The tail of 41 tokens is a leaf of its own.
        assert driver.shape() == [[10], [1]]
    whole = [*prompt, *reply]
    for length in range(1, len(whole) + 1):
        run = driver.begin(whole[:length])
        driver.end(run)
    assert driver.shape() == [[10], [1]]


def test_nothing_is_split_by_asking() -> None:
    driver = CacheDriver(block_size=4)
    driver.serve(numbered(20))
    for length in range(1, 21):
        driver.hit(numbered(length))
        driver.hit([*numbered(length), 999])
    assert driver.shape() == [[5]]


def test_a_split_keeps_counts_times_and_hits_on_both_sides() -> None:
    driver = CacheDriver(block_size=4, clock=SettableClock())
    run = driver.begin(numbered(16))
    driver.compute(run)
    lower = run.lease.node
    lower.num_hits, lower.created_at = 7, 0.5
    other = driver.acquire([*numbered(8), 99])
    upper = other.lease.node
    assert run.lease.node is lower, "the lower half keeps the object"
    assert lower.parent is upper
    assert (upper.count, lower.count) == (2, 1)
    assert (upper.created_at, lower.created_at) == (0.5, 0.5)
    assert (upper.num_hits, lower.num_hits) == (8, 7)
    driver.end(run)
    driver.end(other)
    merged = driver.root.children
    assert merged is not None
    assert list(merged.values()) == [lower], "the child keeps the object"
    assert (lower.created_at, lower.num_hits) == (0.5, 8)


def test_a_merged_run_is_as_old_as_its_oldest_block() -> None:
    driver = CacheDriver(block_size=4)
    run = driver.begin(numbered(8))
    driver.compute(run)
    born = run.lease.node.created_at
    other = driver.acquire([*numbered(8), 99])
    driver.extend(run, numbered(4, 50))
    assert run.lease.node.created_at > born
    driver.end(other)
    driver.end(run)
    assert driver.shape() == [[3]]
    assert run.lease.node.created_at == born


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_leases_leave_one_node_in_every_order(order: tuple[int, ...]) -> None:
    driver = CacheDriver(block_size=4, clock=SettableClock())
    driver.serve(numbered(24))
    runs = [driver.acquire([*numbered(4 * n), 999]) for n in (2, 5, 1, 4)]
    assert driver.shape() == [[1], [1], [2], [1], [1]]
    for index in order:
        driver.end(runs[index])
    assert driver.shape() == [[6]]


def test_what_was_used_at_other_times_stays_apart_until_all_is_used() -> None:
    driver = CacheDriver(block_size=4, num_blocks=14)
    driver.serve(numbered(24))
    driver.serve(numbered(16, 500))
    driver.serve(numbered(8))
    assert driver.shape() == [[2, 4], [4]]
    # The tail is older than the other run, although what it hangs on is younger.
    driver.fill(8)
    assert driver.hit([*numbered(16, 500), 999]) == 16
    assert driver.hit([*numbered(24), 999]) == 8
    driver.serve(numbered(24))
    assert driver.shape() == [[6, 4]]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_branches_live_and_go_in_every_order(order: tuple[int, ...]) -> None:
    driver = CacheDriver(num_blocks=40, block_size=4)
    base = numbered(8)
    prompts = [
        [*base, *numbered(8, 100)],
        [*base, *numbered(4, 100), *numbered(4, 200)],
        [*base[:4], *numbered(8, 300)],
        [*base, *numbered(4, 100)],
    ]
    runs = []
    for prompt in prompts:
        run = driver.begin(prompt)
        driver.compute(run)
        runs.append(run)
    for done, index in enumerate(order):
        driver.end(runs[index])
        driver.fill(40 - driver.cache.counts.shared - driver.cache.counts.private)
        for left in order[done + 1 :]:
            held = runs[left].lease.block_ids
            assert len(held) == -(-len(prompts[left]) // 4)
    assert driver.cache.counts.free == 40


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_unlinked_nodes_are_freed_by_their_leases_in_every_order(
    order: tuple[int, ...],
) -> None:
    driver = CacheDriver(num_blocks=30, block_size=4)
    driver.serve(numbered(20))
    runs = [driver.acquire([*numbered(4 * n), 999]) for n in (1, 2, 4)]
    tree = runs[0].lease.tree
    kill_subtree(tree, runs[1].lease.node, at=0.0)
    for run in runs[1:]:
        driver.cache._paths.throw_away(run.lease)
        driver.cache._frontiers.remove(run.lease)
        run.lease.is_doomed = True
    driver.check()
    for index in order:
        driver.end(runs[index])
    assert driver.hit(numbered(20)) == 4
    driver.fill(30)
    assert driver.cache.counts.free == 30


def test_equal_cold_prompts_side_by_side_end_as_one_run() -> None:
    driver = CacheDriver(num_blocks=16, block_size=4)
    one, other = driver.begin(numbered(13)), driver.begin(numbered(13))
    driver.compute(one)
    driver.compute(other)
    assert other.lease.block_ids[:3].tolist() == one.lease.block_ids[:3].tolist()
    driver.end(one)
    free = driver.cache.counts.free
    driver.fill(free + 1)  # evicts the first one's tail, all that nobody holds
    driver.extend(other, [50, 51, 52, 53])
    third = driver.begin(numbered(13))
    assert third.lease.num_hit_tokens == 12
    driver.end(other)
    driver.end(third)


def test_adopting_never_goes_beyond_what_was_computed_at_commit() -> None:
    driver = CacheDriver(block_size=4)
    slow, fast = driver.begin(numbered(17)), driver.begin(numbered(17))
    driver.compute(fast)
    driver.compute(slow, 6)
    assert slow.lease.num_published_tokens == 4
    slow.computed = driver.cache.adopt(slow.lease, slow.array, slow.computed)
    assert slow.computed == 16
    driver.check()
    driver.end(slow)
    driver.end(fast)
    assert driver.shape() == [[4], [1]]


def test_adopting_never_takes_the_last_token() -> None:
    driver = CacheDriver(block_size=4)
    slow, fast = driver.begin(numbered(16)), driver.begin(numbered(16))
    driver.compute(fast)
    assert driver.cache.adopt(slow.lease, slow.array, 0) == 12


def test_adopting_is_for_those_who_read() -> None:
    driver = CacheDriver(block_size=4)
    slow = driver.begin(numbered(16), access=Access(read=False, write=True))
    driver.serve(numbered(16))
    assert driver.cache.adopt(slow.lease, slow.array, 0) == 0


# In-place extension: one test a condition.


def extended(driver: CacheDriver, run: Running) -> bool:
    """Whether the next block of ``run`` went into the node where its lease ended."""
    node = run.lease.node
    missing = -run.computed % driver.size or driver.size
    driver.extend(run, numbered(missing, 10_000))
    return run.lease.node is node


def begun(driver: CacheDriver, num_tokens: int = 8) -> Running:
    run = driver.begin(numbered(num_tokens))
    driver.compute(run)
    return run


def test_a_leaf_is_extended_in_place() -> None:
    driver = CacheDriver(block_size=4)
    run = begun(driver)
    assert extended(driver, run)
    driver.end(run)
    assert driver.shape() == [[3]]


def test_not_where_another_lease_passes() -> None:
    driver = CacheDriver(block_size=4)
    run = begun(driver)
    other = driver.acquire([*numbered(8), 99])
    assert not extended(driver, run)
    driver.end(other)
    driver.end(run)
    assert driver.shape() == [[3]], "merged once the other one left"


def test_not_where_a_child_hangs() -> None:
    driver = CacheDriver(block_size=4)
    run = begun(driver)
    driver.serve([*numbered(8), *numbered(5, 500)])
    assert run.lease.node.count == 1
    assert not extended(driver, run)


def test_not_where_a_partial_leaf_hangs_that_goes_on_differently() -> None:
    driver = CacheDriver(block_size=4)
    run = begun(driver)
    driver.serve([*numbered(8), 77, 78])
    assert not extended(driver, run)


def test_a_partial_leaf_that_the_new_block_begins_with_is_superseded() -> None:
    driver = CacheDriver(block_size=4)
    run = begun(driver)
    driver.serve([*numbered(8), 10_000, 10_001])
    assert driver.shape() == [[2], [1]]
    assert extended(driver, run)
    driver.end(run)
    assert driver.shape() == [[3]]


def test_not_where_something_else_was_lost() -> None:
    driver = CacheDriver(num_blocks=8, block_size=4)
    run = begun(driver)
    driver.serve([*numbered(8), *numbered(4, 500)])
    driver.fill(6)
    assert run.lease.node.tombstones
    assert not extended(driver, run)


def test_the_tombstone_of_what_comes_back_is_taken_down() -> None:
    driver = CacheDriver(num_blocks=8, block_size=4)
    run = begun(driver)
    driver.serve([*numbered(8), *numbered(4, 10_000)])
    driver.fill(6)
    assert run.lease.node.tombstones
    assert extended(driver, run)
    assert run.lease.node.tombstones is None


def test_not_below_what_was_invalidated() -> None:
    driver = CacheDriver(block_size=4)
    run = begun(driver, 12)
    node, tree = run.lease.node, run.lease.tree
    readers = node.readers
    kill_subtree(tree, node, at=0.0)
    ids = driver.cache._pool.allocate(1)
    assert tree.publish(node, readers, run.array[:4], ids) is not node


def test_arrays_of_a_trimmed_run_shrink() -> None:
    driver = CacheDriver(num_blocks=100, block_size=4)
    driver.serve(numbered(4 * 90))
    driver.fill(98)
    assert driver.shape() == [[2]]
    [node] = (driver.root.children or {}).values()
    assert len(node._block_ids) < 10
    assert len(node._tokens) < 40


# Partial leaves and the inner map.


def test_four_tails_are_kept_and_the_least_recently_used_goes() -> None:
    driver = CacheDriver(block_size=8)
    base = numbered(8)
    for last in range(5):
        driver.serve([*base, 50, 51, 52, 53, 60 + last])
    hits = [driver.hit([*base, 50, 51, 52, 53, 60 + last, 99]) for last in range(5)]
    assert hits == [12, 13, 13, 13, 13]
    assert driver.shape() == [[1], [1, 1, 1, 1]]
    assert driver.cache.counts.idle == 5


def test_a_tail_that_was_copied_from_counts_as_used() -> None:
    driver = CacheDriver(block_size=8)
    prompts = [[*numbered(8), 50, 51, 52, 53, 60 + last] for last in range(5)]
    for prompt in prompts[:4]:
        driver.serve(prompt)
    run = driver.begin([*prompts[0], 99])
    run.computed = run.lease.num_matched_tokens
    driver.end(run)
    driver.serve(prompts[4])
    assert [driver.hit([*prompt, 99]) for prompt in prompts] == [13, 12, 13, 13, 13]


def test_the_version_changes_with_who_is_compared() -> None:
    driver = CacheDriver(block_size=8)
    base = numbered(8)
    blocks = [[50, 51, 52, 53, *numbered(4, 100 * n)] for n in range(1, 6)]
    for block in blocks:
        driver.serve([*base, *block])
    # The first is compared no more, but still matched; its use pushes the second out.
    asked = [*base, *blocks[1][:6], 999]
    assert (driver.hit([*base, *blocks[0][:6], 999]), driver.hit(asked)) == (12, 14)
    version = driver.cache.version(driver.fingerprint)
    run = driver.acquire([*base, *blocks[0], 1])
    assert driver.hit(asked) == 12
    assert driver.cache.version(driver.fingerprint) != version
    driver.end(run)


def test_a_tail_pushed_out_while_pinned_lives_until_its_copy_is_done() -> None:
    driver = CacheDriver(block_size=8)
    base = numbered(8)
    driver.serve([*base, 50, 51, 52, 53])
    run = driver.acquire([*base, 50, 51, 52, 53, 99])
    driver.reserve(run, 13)
    source = run.lease.copy_source
    assert source is not None
    for last in range(4):
        driver.serve([*base, 50, 60 + last])
    assert (source.is_attached, source.is_freed) == (False, False)
    driver.carry_out(run)
    assert source.is_freed
    driver.compute(run)
    driver.end(run)


def test_a_tail_that_a_block_begins_with_is_not_kept() -> None:
    driver = CacheDriver(block_size=8)
    driver.serve(numbered(16))
    idle = driver.cache.counts.idle
    driver.serve(numbered(13))
    assert driver.cache.counts.idle == idle


def test_the_longer_tail_replaces_the_shorter() -> None:
    driver = CacheDriver(block_size=8)
    for length in (10, 12, 11, 14):
        driver.serve(numbered(length))
    assert driver.shape() == [[1], [1]]
    assert driver.hit([*numbered(14), 99]) == 14


def test_a_tail_alone_and_then_its_whole_block_are_found() -> None:
    driver = CacheDriver(block_size=4)
    driver.serve(numbered(3))
    driver.serve(numbered(5))
    assert driver.hit(numbered(5)) == 4
    driver.serve(numbered(6))
    assert driver.hit(numbered(6)) == 4


def test_a_longer_tail_alone_is_found() -> None:
    driver = CacheDriver(block_size=8)
    driver.serve(numbered(5))
    driver.serve(numbered(7))
    assert driver.hit([*numbered(7), 99]) == 7


def test_three_agreeing_tokens_are_not_copied_and_four_are() -> None:
    driver = CacheDriver(block_size=8)
    driver.serve(numbered(16))
    assert driver.hit([*numbered(11), 99, 99]) == 8
    assert driver.hit([*numbered(12), 99]) == 12


def test_the_longest_agreement_is_taken() -> None:
    driver = CacheDriver(block_size=8)
    for length in (5, 7, 6):
        driver.serve([*numbered(8), *numbered(length, 50), *numbered(8, 1000 * length)])
    assert driver.hit([*numbered(8), *numbered(8, 50)]) == 15
