"""Cache invariants: pool, trees, leases, queue and frontiers held against each other.

- free + private + shared + idle = capacity, and every block is in exactly one place:
  the free list, the private part of one lease's table, or one node
- a node's blocks are shared while a lease, a pending copy or a pinned approval ends at
  or below it, else idle
- the published part of a lease's table is its path through the tree
- the eviction queue holds exactly the idle leaves
- every frontier is where its lease ends
- marks are those of the approvals that hold; pins are theirs and the operators'
- accounts count the idle blocks of their domains, and none is above its maximum
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from prefold.blocks.pool import BlockPool, BlockState
from prefold.cache.approved import ApprovedPrefixes
from prefold.cache.frontier import Frontiers
from prefold.cache.lease import Lease
from prefold.cache.room import Room
from prefold.errors import InvariantError
from prefold.tree.invariants import check_tree
from prefold.tree.node import Node
from prefold.tree.path import path_ids
from prefold.tree.prefix_tree import PrefixTree


def check_cache(
    *,
    pool: BlockPool,
    trees: list[PrefixTree],
    leases: Collection[Lease],
    room: Room,
    frontiers: Frontiers,
    approved: ApprovedPrefixes,
) -> None:
    """Raise ``InvariantError`` unless all of it holds. O(blocks and tokens)."""
    pool.check_invariants()
    nodes: list[Node] = []
    for tree in trees:
        nodes += check_tree(tree, [*_pins(tree, leases), *approved.pins.ends(tree)])
        room.enter_leaves(tree)
    for lease in leases:
        _check_lease(lease)
    private = [lease.block_ids[lease.num_published :] for lease in leases]
    _check_ids(pool, BlockState.PRIVATE, private)
    _check_ids(pool, BlockState.SHARED, [n.block_ids for n in nodes if n.count > 0])
    _check_ids(pool, BlockState.IDLE, [n.block_ids for n in nodes if n.count == 0])
    room.queue.check_invariants({node for node in nodes if node.is_evictable})
    room.check_invariants(leases, nodes)
    frontiers.check_invariants(leases)
    approved.check_invariants()


def _pins(tree: PrefixTree, leases: Collection[Lease]) -> list[Node]:
    its = [lease for lease in leases if lease.tree is tree]
    pins = [lease.node for lease in its]
    return pins + [lease.copy_source for lease in its if lease.copy_source is not None]


def _check_lease(lease: Lease) -> None:
    if lease.is_released:
        raise InvariantError("a released lease is still listed")
    lease.table.check_invariants()
    tree = lease.tree
    path = path_ids(lease.node, below=tree.root)
    if not np.array_equal(path, lease.block_ids[: lease.num_published]):
        raise InvariantError("a lease's published blocks are not its path in the tree")
    tokens = []
    at = lease.node
    while at.parent is not None:
        tokens.append(at.tokens)
        at = at.parent
    held = np.concatenate([*reversed(tokens), np.empty(0, dtype=np.int64)])
    if not np.array_equal(held, lease.tokens[: len(held)]):
        raise InvariantError("a lease's path has other tokens than its sequence")


def _check_ids(pool: BlockPool, state: BlockState, parts: list[np.ndarray]) -> None:
    held = np.concatenate([*parts, np.empty(0, dtype=np.int32)])
    if not np.array_equal(np.sort(held), pool.ids_in(state)):
        raise InvariantError(f"the blocks that should be {state.name} are not")
