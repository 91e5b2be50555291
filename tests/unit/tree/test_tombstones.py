import numpy as np
import pytest

from prefold.errors import InvariantError
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.tree.account import Account
from prefold.tree.loss import LossCause, Tombstone
from prefold.tree.node import ChildKey, Node, Readers
from prefold.tree.tombstones import Tombstones

READERS = Readers(
    Audience(AudienceKind.OWN, Domain("a")),
    0,
    0,
    Account("all", num_reserved=0, max_idle=100),
)


def key(token: int) -> ChildKey:
    return READERS, np.array([token], dtype=np.int64).tobytes()


def lost(num_blocks: int, at: float = 1.0) -> Tombstone:
    return Tombstone(at=at, cause=LossCause.EVICTED, policy="lru", num_blocks=num_blocks)


@pytest.fixture
def node() -> Node:
    READERS.num_tombstones = 0
    return Node(readers=READERS, parent=None, start=0, at=0.0)


@pytest.fixture
def tombstones() -> Tombstones:
    return Tombstones(3, lambda _: None)


def test_two_losses_at_one_place_add_up_and_the_newer_tells_when(
    node: Node, tombstones: Tombstones
) -> None:
    tombstones.put(node, key(1), lost(2, at=1.0))
    tombstones.put(node, key(1), lost(3, at=7.0))
    assert node.tombstones == {key(1): lost(5, at=7.0)}
    assert READERS.num_tombstones == len(tombstones) == 1
    tombstones.check_invariants([node])


def test_the_oldest_is_forgotten_first(node: Node, tombstones: Tombstones) -> None:
    for token in range(5):
        tombstones.put(node, key(token), lost(1))
    assert node.tombstones is not None
    assert list(node.tombstones) == [key(2), key(3), key(4)]
    assert READERS.num_tombstones == len(tombstones) == 3
    tombstones.check_invariants([node])


def test_one_that_grew_is_the_newest(node: Node, tombstones: Tombstones) -> None:
    for token in (0, 1, 2, 0, 3):
        tombstones.put(node, key(token), lost(1))
    assert node.tombstones is not None
    assert set(node.tombstones) == {key(0), key(2), key(3)}


def test_taking_all_returns_the_blocks_and_leaves_no_map(
    node: Node, tombstones: Tombstones
) -> None:
    tombstones.put(node, key(1), lost(2))
    tombstones.put(node, key(2), lost(3))
    assert tombstones.take_all(node) == 5
    assert node.tombstones is None
    assert len(tombstones) == READERS.num_tombstones == 0
    assert tombstones.take_all(node) == 0


def test_removing_one_that_is_not_there_is_nothing(
    node: Node, tombstones: Tombstones
) -> None:
    tombstones.remove(node, key(1))
    tombstones.put(node, key(2), lost(1))
    tombstones.remove(node, key(1))
    assert len(tombstones) == 1


def test_the_audience_is_told_whenever_it_lost_one(node: Node) -> None:
    told: list[Readers] = []
    tombstones = Tombstones(3, told.append)
    tombstones.put(node, key(1), lost(1))
    assert told == []
    tombstones.remove(node, key(1))
    assert told == [READERS]


def test_one_that_is_not_listed_is_found(node: Node, tombstones: Tombstones) -> None:
    node.tombstones = {key(1): lost(1)}
    with pytest.raises(InvariantError, match="differ"):
        tombstones.check_invariants([node])


def test_too_many_are_found(node: Node, tombstones: Tombstones) -> None:
    tombstones.put(node, key(1), lost(1))
    tombstones.limit = 0
    with pytest.raises(InvariantError, match="limit 0"):
        tombstones.check_invariants([node])


def test_a_wrong_count_is_found(node: Node, tombstones: Tombstones) -> None:
    READERS.num_tombstones = 1
    with pytest.raises(InvariantError, match="does not count"):
        tombstones.check_invariants([node])
