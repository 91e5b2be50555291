import numpy as np
import pytest

from prefold.errors import InvariantError
from prefold.eviction.lru import Lru
from prefold.eviction.queue import EvictionQueue
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.tree.node import Node, Readers

READERS = Readers(Audience(AudienceKind.OWN, Domain("a")), 0, 0)
ROOT = Node(readers=READERS, parent=None, start=0, at=0.0)


def leaf(last_used_at: float) -> Node:
    node = Node(readers=READERS, parent=ROOT, start=0, at=last_used_at)
    node.set_run(np.array([1, 2], dtype=np.int64), np.array([0], dtype=np.int32))
    return node


def make_queue(*leaves: Node) -> EvictionQueue:
    queue = EvictionQueue(Lru())
    for node in leaves:
        queue.push(node)
    return queue


def test_the_least_recently_used_comes_first_and_stays_until_it_is_gone() -> None:
    old, new = leaf(1.0), leaf(2.0)
    queue = make_queue(new, old)
    assert queue.first() is old
    assert queue.first() is old
    old.is_freed = True
    assert queue.first() is new


def test_equal_scores_go_in_order_of_entry() -> None:
    leaves = [leaf(1.0) for _ in range(5)]
    queue = make_queue(*leaves)
    for expected in leaves:
        assert queue.first() is expected
        expected.is_freed = True
    assert queue.first() is None


def test_a_node_entered_again_counts_only_with_its_newest_entry() -> None:
    old, new = leaf(1.0), leaf(2.0)
    queue = make_queue(old, new)
    old.last_used_at = 3.0
    queue.push(old)
    assert queue.first() is new
    queue.check_invariants({old, new})


def test_what_cannot_be_evicted_is_not_entered() -> None:
    leased = leaf(1.0)
    leased.count = 1
    assert len(make_queue(leased, ROOT)) == 0


def test_what_became_leased_is_passed_over() -> None:
    old, new = leaf(1.0), leaf(2.0)
    queue = make_queue(old, new)
    old.count = 1
    assert queue.first() is new


def test_compacting_drops_stale_entries_only() -> None:
    nodes = [leaf(float(i)) for i in range(3)]
    queue = make_queue(*nodes)
    for _ in range(EvictionQueue.MIN_COMPACTED):
        queue.push(nodes[0])
    queue.compact(num_nodes=3)
    assert len(queue) == 3
    queue.check_invariants(set(nodes))


def test_a_missing_entry_is_found() -> None:
    known, unknown = leaf(1.0), leaf(2.0)
    with pytest.raises(InvariantError, match="evictable"):
        make_queue(known).check_invariants({known, unknown})


def test_a_node_entered_twice_with_one_ticket_is_found() -> None:
    node = leaf(1.0)
    queue = make_queue(node)
    queue._heap.append(queue._heap[0])
    with pytest.raises(InvariantError, match="evictable"):
        queue.check_invariants({node})
