"""Accounting: the cache's figures at one moment, for the outside."""

from __future__ import annotations

from dataclasses import dataclass

from prefold.blocks.pool import BlockCounts


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
