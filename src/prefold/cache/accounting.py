"""Accounting: the cache's figures at one moment, for the outside."""

from __future__ import annotations

from dataclasses import dataclass

from prefold.blocks.pool import BlockCounts, BlockPool
from prefold.cache.room import Room
from prefold.cache.trees import Trees


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSnapshot:
    """Figures of one moment.

    Attributes:
        num_nodes: Tree nodes, dead ones not yet swept included.
        num_leases: Leases not yet released.
        num_evicted_blocks: Blocks evicted since the start.
        num_evictions: Times a leaf's tail was evicted.
    """

    blocks: BlockCounts
    num_trees: int
    num_nodes: int
    num_leases: int
    num_evictions: int
    num_evicted_blocks: int


def take_snapshot(
    pool: BlockPool, trees: Trees, room: Room, num_leases: int
) -> CacheSnapshot:
    """Return the figures of this moment."""
    its = trees.all()
    return CacheSnapshot(
        blocks=pool.counts,
        num_trees=len(its),
        num_nodes=sum(tree.num_nodes for tree in its),
        num_leases=num_leases,
        num_evictions=room.num_evictions,
        num_evicted_blocks=room.num_evicted_blocks,
    )
