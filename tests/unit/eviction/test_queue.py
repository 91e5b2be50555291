from collections.abc import Hashable
from random import Random

import numpy as np
import pytest

from prefold.errors import InvariantError
from prefold.eviction.lru import Lru
from prefold.eviction.policy import LeafFacts, Rank
from prefold.eviction.queue import EvictionQueue
from prefold.eviction.rack import MAX_DUE
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.tree.account import Account
from prefold.tree.node import Node, Readers

ACCOUNT = Account("all", num_reserved=0, max_idle=1000)
OTHER = Account("other", num_reserved=0, max_idle=1000)
NOW = 100.0


def readers(account: Account) -> Readers:
    return Readers(Audience(AudienceKind.OWN, Domain("a")), 0, 0, account)


ROOT = Node(readers=readers(ACCOUNT), parent=None, start=0, at=0.0)


def leaf(last_used_at: float, account: Account = ACCOUNT, priority: int = 0) -> Node:
    node = Node(readers=readers(account), parent=ROOT, start=0, at=last_used_at)
    node.set_run(np.array([1, 2], dtype=np.int64), np.array([0], dtype=np.int32))
    node.priority = priority
    return node


def make_queue(*leaves: Node, ranks_across: bool = False) -> EvictionQueue:
    queue = EvictionQueue(Lru, ranks_across=ranks_across)
    for node in leaves:
        queue.push(node, NOW)
    return queue


def first(queue: EvictionQueue, now: float = NOW) -> Node | None:
    found = queue.first(now)
    return None if found is None else found[0]


def order(queue: EvictionQueue) -> list[Node]:
    found = []
    while (node := first(queue)) is not None:
        found.append(node)
        node.is_freed = True
    return found


def test_the_least_recently_used_comes_first_and_stays_until_it_is_gone() -> None:
    old, new = leaf(1.0), leaf(2.0)
    queue = make_queue(new, old)
    assert first(queue) is old
    assert queue.first(NOW) == (old, Rank(None, 1.0))
    old.is_freed = True
    assert first(queue) is new


def test_equal_scores_go_in_order_of_entry() -> None:
    leaves = [leaf(1.0) for _ in range(5)]
    assert order(make_queue(*leaves)) == leaves


def test_a_node_entered_again_counts_only_with_its_newest_entry() -> None:
    old, new = leaf(1.0), leaf(2.0)
    queue = make_queue(old, new)
    old.last_used_at = 3.0
    queue.push(old, NOW)
    assert first(queue) is new
    queue.check_invariants({old, new})


def test_what_cannot_be_evicted_is_not_entered() -> None:
    leased = leaf(1.0)
    leased.count = 1
    assert len(make_queue(leased, ROOT)) == 0


def test_what_became_leased_is_passed_over() -> None:
    old, new = leaf(1.0), leaf(2.0)
    queue = make_queue(old, new)
    old.count = 1
    assert first(queue) is new


def test_a_lower_priority_goes_before_an_older_one_of_the_same_account() -> None:
    dear, plain, cheap = leaf(1.0, priority=5), leaf(2.0), leaf(3.0, priority=-5)
    assert order(make_queue(dear, plain, cheap)) == [cheap, plain, dear]


def test_a_conversation_that_ended_goes_first_whatever_its_priority() -> None:
    ended, plain = leaf(9.0, priority=100), leaf(1.0, priority=-100)
    ended.is_ended = True
    assert order(make_queue(plain, ended)) == [ended, plain]


def test_a_priority_does_not_count_against_other_accounts() -> None:
    mine, theirs = leaf(1.0, ACCOUNT, priority=100), leaf(2.0, OTHER, priority=-100)
    assert order(make_queue(mine, theirs)) == [mine, theirs]


def test_a_priority_counts_across_accounts_where_that_is_wanted() -> None:
    mine, theirs = leaf(1.0, ACCOUNT, priority=1), leaf(2.0, OTHER)
    assert order(make_queue(mine, theirs, ranks_across=True)) == [theirs, mine]


def test_only_the_accounts_that_may_be_taken_from_are_looked_at() -> None:
    mine, theirs = leaf(2.0, ACCOUNT), leaf(1.0, OTHER)
    found = make_queue(mine, theirs).first(NOW, lambda account: account is ACCOUNT)
    assert found == (mine, Rank(None, 2.0))


def test_an_account_above_its_maximum_goes_first() -> None:
    full = Account("full", num_reserved=0, max_idle=1)
    full.num_idle = 2
    old, of_full = leaf(1.0), leaf(2.0, full)
    queue = make_queue(old, of_full)
    assert first(queue) is of_full
    full.num_idle = 1
    assert first(queue) is old


def test_what_a_queued_request_waits_for_goes_after_the_rest() -> None:
    awaited, plain = leaf(1.0), leaf(2.0)
    queue = make_queue(awaited, plain)
    awaited.wanted_until = NOW + 10
    assert order(queue) == [plain, awaited]


def test_waiting_protects_for_a_while_only() -> None:
    awaited, plain = leaf(1.0), leaf(2.0)
    awaited.wanted_until = NOW + 10
    queue = make_queue(awaited, plain)
    assert first(queue, NOW + 9) is plain
    assert first(queue, NOW + 10) is awaited


def test_waiting_does_not_outdo_a_priority() -> None:
    awaited, dear = leaf(1.0), leaf(2.0, priority=1)
    awaited.wanted_until = NOW + 10
    assert first(make_queue(awaited, dear)) is awaited


class Fading(Lru):
    """Keeps leaves on one shelf, and on a worthless one once unused for 5 seconds."""

    def __init__(self) -> None:
        self.version = 0
        self.worth_by_shelf = {"new": 10.0, "old": 0.0}

    def rank(self, facts: LeafFacts, now: float) -> Rank:
        fades_at = facts.last_used_at + 5
        if now >= fades_at:
            return Rank("old", facts.last_used_at)
        return Rank("new", facts.last_used_at, fades_at)

    def worth(self, shelf: Hashable) -> float:
        return self.worth_by_shelf[str(shelf)]


def fading(now: float, *nodes: Node) -> EvictionQueue:
    queue = EvictionQueue(Fading)
    for node in nodes:
        queue.push(node, now)
    return queue


def test_a_rank_is_asked_for_again_when_its_time_is_over() -> None:
    early, late = leaf(100.0), leaf(102.0)
    queue = fading(103.0, late, early)
    found = queue.first(104.0)
    assert found is not None
    assert (found[0], found[1].shelf) == (early, "new")
    found = queue.first(105.0)
    assert found is not None
    assert (found[0], found[1].shelf) == (early, "old")
    early.is_freed = True
    assert first(queue, 106.0) is late
    queue.check_invariants({late})


def test_many_leaves_change_their_shelf_a_few_at_a_time() -> None:
    nodes = [leaf(100.0 + at / 1000) for at in range(3 * MAX_DUE)]
    queue = fading(100.5, *nodes)
    for calls in range(1, 5):
        assert first(queue, 200.0) is nodes[0]
        queue.check_invariants(set(nodes))
        [rack] = queue._racks.values()
        num_old = sum(len(shelf) for key, shelf in rack._shelves.items() if key[1] == "old")
        assert num_old == min(calls * MAX_DUE, len(nodes))
    assert order(queue) == nodes


def test_what_shelves_are_worth_is_asked_anew_when_the_policy_has_learned() -> None:
    policy = Fading()
    queue = EvictionQueue(lambda: policy)
    old, new = leaf(90.0), leaf(99.0)
    for node in (old, new):
        queue.push(node, NOW)
    assert first(queue) is old
    policy.worth_by_shelf["old"] = 20.0
    assert first(queue) is old
    policy.version += 1
    assert first(queue) is new


def test_a_shelf_whose_worth_fell_meanwhile_loses_nobody() -> None:
    policy = Fading()
    queue = EvictionQueue(lambda: policy)
    nodes = [leaf(96.0), leaf(97.0), leaf(98.0)]
    for node in nodes:
        queue.push(node, NOW)
    # Not told by a new version: what is measured changes at any time.
    policy.worth_by_shelf["new"] = 5.0
    nodes[0].is_freed = True
    assert order(queue) == nodes[1:]


def test_any_order_of_pushes_is_sorted() -> None:
    dice = Random(5)  # noqa: S311 -- a test's dice
    queue = EvictionQueue(Fading)
    nodes = [leaf(dice.uniform(80, 100), priority=dice.randint(-1, 1)) for _ in range(200)]
    for node in nodes:
        queue.push(node, NOW)
        if dice.random() < 0.3:
            node.last_used_at = dice.uniform(80, 100)
            queue.push(node, NOW)
    queue.check_invariants(set(nodes))
    expected = sorted(
        nodes, key=lambda n: (n.priority, n.last_used_at > 95, n.last_used_at)
    )
    assert order(queue) == expected


def test_compacting_drops_stale_entries_only() -> None:
    nodes = [leaf(NOW + i) for i in range(3)]
    queue = fading(NOW, *nodes)
    for _ in range(EvictionQueue.MIN_COMPACTED):
        queue.push(nodes[0], NOW)
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
    [shelf] = queue._racks[ACCOUNT]._shelves.values()
    shelf.append(shelf[0])
    with pytest.raises(InvariantError, match="evictable"):
        queue.check_invariants({node})


def test_a_leaf_in_another_account_is_found() -> None:
    node = leaf(1.0)
    queue = make_queue(node)
    queue._racks[OTHER] = queue._racks.pop(ACCOUNT)
    with pytest.raises(InvariantError, match="another's account"):
        queue.check_invariants({node})


def test_a_shelf_that_is_not_looked_at_is_found() -> None:
    node = leaf(1.0)
    queue = make_queue(node)
    queue._racks[ACCOUNT]._heads.clear()
    with pytest.raises(InvariantError, match="looked for"):
        queue.check_invariants({node})
