"""Trimming: what eviction takes from a leaf, and what it leaves to explain that."""

from __future__ import annotations

from prefold.errors import InvariantError
from prefold.tree.loss import LossCause, Pressure, Tombstone
from prefold.tree.lost import LostRun, joined, marks_of
from prefold.tree.node import Node
from prefold.tree.prefix_tree import PrefixTree


def trim(
    tree: PrefixTree,
    leaf: Node,
    num_blocks: int,
    policy: str,
    at: float,
    pressure: Pressure = Pressure.POOL,
) -> None:
    """Evict up to ``num_blocks`` blocks from the tail of an idle leaf.

    Leaves a tombstone where a later match will stop. O(blocks evicted).
    """
    if not leaf.is_evictable or leaf.parent is None:
        raise InvariantError("only an idle leaf can be trimmed")
    num_blocks = min(num_blocks, leaf.num_blocks)
    keeper, key = leaf.parent, leaf.key
    is_found = not tree.audiences.is_dead(leaf) and not leaf.is_unmarked
    run = None
    if leaf.cohort is not None and not leaf.is_partial:
        tail = leaf.tokens[leaf.num_tokens - num_blocks * tree.block_size :]
        run = LostRun(leaf.cohort, marks_of(tail, tree.block_size), leaf.num_forks)
    # Of several paths that went on from here, the one that was lost last.
    newest = max((leaf.tombstones or {}).values(), key=lambda it: it.at, default=None)
    below = () if newest is None else newest.lost
    lost = num_blocks + tree.tombstones.take_all(leaf)
    if num_blocks < leaf.num_blocks:
        kept = leaf.num_blocks - num_blocks
        keeper, key = leaf, (leaf.readers, leaf.block_bytes(kept, tree.block_size))
        tree.drop_tail(leaf, num_blocks)
    # Hung before the leaf goes, or its audience might be forgotten as empty.
    if key is not None and is_found:
        tombstone = Tombstone(
            at=at,
            cause=LossCause.EVICTED,
            policy=policy,
            pressure=pressure,
            num_blocks=lost,
            lost=joined(run, below),
        )
        tree.tombstones.put(keeper, key, tombstone)
    if keeper is not leaf:
        # Its blocks stay in the cohort: they may be asked for again.
        leaf.cohort = None
        tree.free_node(leaf)
