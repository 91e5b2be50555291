"""Tree picture: everything a cache knows, as plain values, to compare two moments."""

from __future__ import annotations

from prefold.cache import PrefixCache
from prefold.tree.dead import all_children
from prefold.tree.node import Node


def picture(cache: PrefixCache) -> object:
    """Return every fact of the cache, the order of inner maps and queue included."""
    return (
        [
            (tree.version, tree.num_nodes, len(tree.tombstones), _node(tree.root))
            for tree in cache._trees.all()
        ],
        [
            (account.name, key, [(entry.order, entry.ticket) for entry in shelf])
            for account, rack in cache.room.queue._racks.items()
            for key, shelf in rack._shelves.items()
        ],
        cache._pool._states.tobytes(),
        cache._pool._free.tobytes(),
        [
            (key[1:], [id(lease) for lease in owners])
            for key, owners in cache._frontiers._owners.items()
        ],
        sorted((id(lease), lease.num_hit_tokens) for lease in cache._leases),
        cache.snapshot(),
    )


def _node(node: Node) -> object:
    inner = node.inner or {}
    return (
        id(node),
        node.tokens.tobytes(),
        node.block_ids.tobytes(),
        (node.count, node.num_hits, node.last_used_at, node.created_at, node.ticket),
        list((node.tombstones or {}).values()),
        [(first, [id(child) for child in listed]) for (_, first), listed in inner.items()],
        [_node(child) for child in all_children(node)],
    )
