"""Invalidation: what each selector makes unreachable in the trees."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from prefold.cache.lease import Lease
from prefold.cache.selector import ByDomain, ByFingerprint, ByPrefix, Everything, Selector
from prefold.cache.trees import Trees
from prefold.errors import InvalidInputError
from prefold.identity.domain import Audience, readable_audiences
from prefold.tree.dead import all_children
from prefold.tree.node import Node, Readers
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.walk import Endpoint, longest_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What became unreachable, and which running leases that concerns.

    Attributes:
        trees: Where something was invalidated.
        audience: Whose; None for everybody's.
        prefix: What it begins with, in whole blocks; None for anything.
    """

    trees: list[PrefixTree]
    audience: Audience | None
    prefix: bytes | None = field(repr=False)
    num_blocks: int
    num_leased_blocks: int
    is_upper_bound: bool

    def covers(self, lease: Lease) -> bool:
        """Whether the lease holds, or is going to publish, something invalidated.

        One that has published nothing yet has no dead node on its path, but what it
        computes belongs to the time before all the same.
        """
        if lease.is_doomed or lease.tree not in self.trees:
            return False
        if lease.tree.audiences.is_doomed(lease.node):
            return True
        if self.audience is not None and lease.audiences[-1] != self.audience:
            return False
        if self.prefix is None:
            return True
        # What the lease knows of its tokens may be older than what is computed. One that
        # can still turn out to begin with the prefix counts as if it did.
        known = lease.tokens.tobytes()[: len(self.prefix)]
        return self.prefix.startswith(known)


def invalidate(selector: Selector, trees: Trees) -> Loss:
    """Make what the selector covers unreachable.

    Raises:
        InvalidInputError: A prefix is shorter than a block.
    """
    match selector:
        case Everything():
            return _kill_trees(trees.all())
        case ByFingerprint(fingerprint=fingerprint):
            return _kill_trees([trees.of(fingerprint)])
        case ByDomain(domain=domain):
            return _kill_audience(trees.all(), readable_audiences(domain)[-1])
        case ByPrefix():
            return _kill_prefix(selector, trees.of(selector.fingerprint))


def _kill_trees(trees: list[PrefixTree]) -> Loss:
    is_unswept = any(tree.dead.holds_blocks() for tree in trees)
    killed = [readers for tree in trees for readers in tree.kill_all()]
    lost = [readers for readers in killed if not readers.is_throwaway]
    return _loss(trees, None, lost, is_upper_bound=is_unswept)


def _kill_audience(trees: list[PrefixTree], audience: Audience) -> Loss:
    is_unswept = any(tree.dead.holds_blocks() for tree in trees)
    killed = [tree.kill_audience(audience) for tree in trees]
    lost = [readers for readers in killed if readers is not None]
    return _loss(trees, audience, lost, is_upper_bound=is_unswept)


def _loss(
    trees: list[PrefixTree],
    audience: Audience | None,
    lost: list[Readers],
    *,
    is_upper_bound: bool,
) -> Loss:
    num_blocks = sum(readers.num_blocks for readers in lost)
    num_idle = sum(readers.num_idle_blocks for readers in lost)
    return Loss(
        trees=list(trees),
        audience=audience,
        prefix=None,
        num_blocks=num_blocks,
        num_leased_blocks=num_blocks - num_idle,
        is_upper_bound=is_upper_bound,
    )


def _kill_prefix(selector: ByPrefix, tree: PrefixTree) -> Loss:
    size = tree.block_size
    limit = len(selector.tokens) // size
    if limit < 1:
        raise InvalidInputError(
            f"a prefix to invalidate needs at least one block, {size} tokens, "
            f"got {len(selector.tokens)}"
        )
    audience = readable_audiences(selector.domain)[-1]
    readable = tree.audiences.readable(readable_audiences(selector.domain))
    ends = longest_paths(
        Endpoint(tree.root, 0, 0, 0), selector.tokens, limit, readable, size
    )
    num_blocks = num_idle = 0
    for end in ends:
        if end.position == limit and end.node.readers.audience == audience:
            # The run's part before the prefix's last block does not begin with it.
            if end.num_blocks > 1:
                tree.split(end.node, end.num_blocks - 1)
            for node in _published_below(end.node):
                num_blocks += node.num_blocks
                num_idle += node.num_blocks if node.count == 0 else 0
            tree.kill_subtree(end.node)
    return Loss(
        trees=[tree],
        audience=audience,
        prefix=np.ascontiguousarray(selector.tokens[: limit * size]).tobytes(),
        num_blocks=num_blocks,
        num_leased_blocks=num_blocks - num_idle,
        is_upper_bound=False,
    )


def _published_below(top: Node) -> list[Node]:
    nodes = [top]
    for node in nodes:
        nodes.extend(all_children(node))
    return [node for node in nodes if not node.readers.is_throwaway]
