"""Every line of the cache's and the tree's invariants, by breaking the state on purpose."""

from collections.abc import Callable

import numpy as np
import pytest

from prefold.blocks.pool import BlockState
from prefold.errors import InvariantError
from prefold.identity.domain import Audience, AudienceKind
from prefold.tree.node import Node, Readers
from support.cache_driver import A, CacheDriver, numbered
from support.running import Running


class State:
    """A cache with a run, two branches, a partial leaf, a lease and a pending copy."""

    def __init__(self) -> None:
        self.driver = driver = CacheDriver(num_blocks=40, block_size=8)
        driver.serve([*numbered(16), *numbered(13, 100)])
        driver.serve([*numbered(16), *numbered(8, 200)])
        self.run: Running = driver.begin([*numbered(16), *numbered(20, 300)])
        self.copying: Running = driver.acquire([*numbered(16), *numbered(12, 100), 9])
        driver.check()
        self.tree = self.run.lease.tree
        [self.top] = (driver.root.children or {}).values()
        # The copy's source is the branch's first block; the partial leaf hangs below it.
        source = self.copying.lease.copy_source
        assert source is not None
        assert source.is_partial
        self.partial = source
        self.branch = self._child(200)
        self.copied = self._child(100)

    def _child(self, token: int) -> Node:
        [child] = [
            child
            for child in (self.top.children or {}).values()
            if child.tokens[0] == token
        ]
        return child


def unlist(state: State) -> None:
    state.branch.is_attached = False


def lose_child(state: State) -> None:
    (state.top.children or {}).clear()


def empty_children(state: State) -> None:
    state.branch.children = {}


def wrong_key(state: State) -> None:
    state.branch.key = (state.branch.readers, b"x")


def wrong_inner(state: State) -> None:
    inner = state.top.inner or {}
    [listed] = [its for its in inner.values() if state.branch in its]
    inner[state.branch.readers, 999] = listed


def twice_in_inner(state: State) -> None:
    for listed in (state.top.inner or {}).values():
        listed.append(listed[0])


def add_readers(state: State) -> None:
    own = Audience(AudienceKind.OWN, A)
    present = state.tree.audiences._present
    present[Audience(AudienceKind.THROWAWAY, A, 5)] = Readers(
        own, 0, 0, state.branch.readers.account
    )


def forget_readers(state: State) -> None:
    state.tree.audiences._present.clear()


def partial_with_more_blocks(state: State) -> None:
    state.partial.is_partial = True
    state.partial.num_blocks = 2


def partial_that_is_whole(state: State) -> None:
    state.branch.is_partial = True


def run_of_half_a_block(state: State) -> None:
    state.branch.num_tokens -= 1


def run_at_a_wrong_place(state: State) -> None:
    state.branch.start += 8


def count_too_many(state: State) -> None:
    state.branch.count += 1


def count_too_few_nodes(state: State) -> None:
    state.tree.num_nodes -= 1


def wrong_audience_blocks(state: State) -> None:
    state.branch.readers.num_blocks += 1


def wrong_audience_idle(state: State) -> None:
    state.branch.readers.num_idle_blocks += 1


def wrong_audience_nodes(state: State) -> None:
    state.branch.readers.num_nodes += 1


def wrong_entries(state: State) -> None:
    state.branch.readers.entries.add(state.branch)


def wrong_partial_count(state: State) -> None:
    parent = state.partial.parent
    assert parent is not None
    parent.num_partial += 1


def other_block(state: State) -> None:
    state.branch._block_ids = state.branch.block_ids + 20


def released_lease_listed(state: State) -> None:
    state.run.lease.is_released = True


def block_twice(state: State) -> None:
    state.run.lease.table.ids[-1] = state.run.lease.table.ids[0]


def published_part_is_not_the_path(state: State) -> None:
    ids = state.run.lease.table.ids
    ids[:2] = ids[:2][::-1].copy()


def other_tokens(state: State) -> None:
    state.run.lease.tokens = state.run.lease.tokens + 1


def private_block_lost(state: State) -> None:
    state.run.lease.table._length -= 1


def private_block_freed(state: State) -> None:
    pool = state.driver.cache._pool
    pool.free(state.run.lease.block_ids[-1:], BlockState.PRIVATE)


def shared_block_at_rest(state: State) -> None:
    state.driver.cache._pool.rest(state.top.block_ids)


def idle_block_in_use(state: State) -> None:
    state.driver.cache._pool.use(state.branch.block_ids)


def stale_queue(state: State) -> None:
    state.branch.ticket += 1


def copy_not_watched(state: State) -> None:
    state.driver.cache.room._copying.clear()


def frontier_lost(state: State) -> None:
    state.run.lease.frontier_key = None


def tombstone_not_listed(state: State) -> None:
    state.driver.cache._trees.of(state.driver.fingerprint).tombstones._listed[
        state.branch, (state.branch.readers, b"x")
    ] = None


def pool_count(state: State) -> None:
    state.driver.cache._pool._counts[0] += 1


def freed_node_listed(state: State) -> None:
    key = (state.top.readers, int(state.branch.tokens[0]))
    assert state.top.inner is not None
    ghost = Node(readers=state.top.readers, parent=state.top, start=16, at=0.0)
    ghost.set_run(state.branch.tokens.copy(), np.array([39], dtype=np.int32))
    ghost.is_freed = True
    state.top.inner[key].append(ghost)


BREAKS: list[tuple[Callable[[State], None], str]] = [
    (unlist, "does not list it, or does though unlinked"),
    (lose_child, "nodes found, the tree counts"),
    (empty_children, "empty map of children"),
    (wrong_key, "another key than its first block"),
    (wrong_inner, "under a wrong token"),
    (twice_in_inner, "too many, or one twice"),
    (freed_node_listed, "under a wrong token"),
    (add_readers, "nothing here was kept"),
    (forget_readers, "forgotten though it has nodes"),
    (partial_with_more_blocks, "not one partly filled block"),
    (partial_that_is_whole, "partial"),
    (run_of_half_a_block, "not made of whole blocks"),
    (run_at_a_wrong_place, "does not start where its parent's ends"),
    (count_too_many, "a node has count"),
    (count_too_few_nodes, "the tree counts"),
    (wrong_audience_blocks, "totals"),
    (wrong_audience_idle, "totals"),
    (wrong_audience_nodes, "totals"),
    (wrong_entries, "entries"),
    (wrong_partial_count, "count of partial leaves"),
    (other_block, "should be IDLE are not"),
    (released_lease_listed, "released lease is still listed"),
    (block_twice, "twice in one block table"),
    (published_part_is_not_the_path, "are not its path"),
    (other_tokens, "other tokens than its sequence"),
    (private_block_lost, "should be PRIVATE are not"),
    (private_block_freed, "should be PRIVATE are not"),
    (shared_block_at_rest, "should be SHARED are not"),
    (idle_block_in_use, "should be SHARED are not"),
    (stale_queue, "eviction queue"),
    (copy_not_watched, "pending copies"),
    (frontier_lost, "frontiers and leases disagree"),
    (tombstone_not_listed, "tombstones on nodes and in the list differ"),
    (pool_count, "counts say"),
]


@pytest.mark.parametrize(
    ("break_it", "message"), BREAKS, ids=lambda x: getattr(x, "__name__", "")
)
def test_a_broken_state_is_found(break_it: Callable[[State], None], message: str) -> None:
    state = State()
    break_it(state)
    with pytest.raises(InvariantError, match=message):
        state.driver.cache.check_invariants()


def test_a_freed_node_on_a_leases_path_is_found() -> None:
    state = State()
    state.run.lease.node.is_freed = True
    with pytest.raises(InvariantError):
        state.driver.cache.check_invariants()


def test_a_throw_away_node_without_lease_is_found() -> None:
    state = State()
    state.branch.readers.audience = Audience(AudienceKind.THROWAWAY, A, 3)
    with pytest.raises(InvariantError, match="outlived its leases"):
        state.driver.cache.check_invariants()
