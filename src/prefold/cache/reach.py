"""Reach: what each selector covers, and how it becomes unreachable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.cache.adapted import Numbers, holds, split_off
from prefold.cache.approved import HeldApproval
from prefold.cache.contents import ContentIds
from prefold.cache.lease import Lease
from prefold.cache.selector import (
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    Selector,
    selector_kind,
)
from prefold.cache.trees import Trees
from prefold.errors import InvalidInputError
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.tree.graves import Grave
from prefold.tree.invalidation import (
    KilledBlocks,
    count_blocks,
    kill_all,
    kill_audience,
    kill_older,
    kill_subtree,
    nodes_below,
)
from prefold.tree.node import Node, Readers
from prefold.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a selector covers, found before anything is changed.

    Attributes:
        trees: Where something may be covered.
        whose: Which audiences.
        prefix: What is covered begins with it, in whole blocks; None for anything.
        born_before: What is covered is older.
        approval: The one approval that is covered, where it is only that.
        numbers: What is covered in other trees holds one of these in place of a token.
        kill: Makes what is covered in the tree unreachable.
    """

    trees: list[PrefixTree]
    kill: Callable[[], list[KilledBlocks]]
    whose: Callable[[Audience], bool] = field(default=lambda _: True)
    prefix: bytes | None = field(default=None, repr=False)
    born_before: float = math.inf
    approval: HeldApproval | None = None
    numbers: Numbers | None = None

    def covers_approval(self, held: HeldApproval) -> bool:
        """Whether an approval has something covered."""
        approval = held.approval
        if self.approval is not None:
            return held is self.approval
        if held.tree not in self.trees or not self.whose(
            Audience(AudienceKind.APPROVED, approval.domain)
        ):
            return False
        if self.prefix is not None:
            return approval.tokens.tobytes().startswith(self.prefix)
        # What it was made from may be older than itself.
        made_at = [approval.created_at, *(node.created_at for node in held.path())]
        return min(made_at) < self.born_before

    def covers_lease(self, lease: Lease) -> bool:
        """Whether a lease holds, or is going to publish, something covered.

        Asked after the kill. One that has published nothing yet has no dead node on its
        path, but what it computes belongs to the time before all the same.
        """
        if lease.is_doomed or lease.tree not in self.trees:
            is_adapted = self.numbers is not None and holds(lease.tokens, self.numbers)
            return is_adapted and not lease.is_doomed
        if lease.tree.audiences.is_doomed(lease.node):
            return True
        if not self.whose(lease.audiences[-1]) or lease.started_at >= self.born_before:
            return False
        if self.prefix is None:
            return True
        # What the lease knows of its tokens may be older than what is computed. One that
        # can still turn out to begin with the prefix counts as if it did.
        known = lease.tokens.tobytes()[: len(self.prefix)]
        return self.prefix.startswith(known)


def reach_of(
    selector: Selector,
    trees: Trees,
    approvals: list[HeldApproval],
    now: float,
    contents: ContentIds,
) -> Reach:
    """Return what a selector covers. Changes nothing.

    Raises:
        InvalidInputError: A prefix is shorter than a block.
    """
    grave = Grave(now, selector_kind(selector))
    match selector:
        case Everything() | ByFingerprint() | ByField():
            return _of_computed(selector, trees, contents, grave)
        case ByDomain():
            return _of_domain(selector, trees.all(), grave)
        case ByApproved(approval_id=wanted):
            found = [it for it in approvals if it.approval.approval_id == wanted]
            return Reach(trees=[], kill=list, approval=found[0] if found else None)
        case ByPrefix():
            return _of_prefix(selector, trees, grave)
        case ByAge(older_than_s=age):
            its, limit = list(trees.all()), now - age
            return Reach(
                trees=its,
                kill=lambda: [_kill_older(tree, limit, grave) for tree in its],
                born_before=limit,
            )


def _of_computed(
    selector: Everything | ByFingerprint | ByField,
    trees: Trees,
    contents: ContentIds,
    grave: Grave,
) -> Reach:
    its = trees.where(partial(_is_meant, selector))
    match selector:
        case ByField(name="adapter", value=bytes(digest)):
            return _of_adapter(its, trees.all(), contents.numbers_of(digest), grave)
        case _:
            return _of_trees(its, grave)


def _is_meant(
    selector: Everything | ByFingerprint | ByField, fingerprint: Fingerprint
) -> bool:
    if isinstance(selector, ByFingerprint):
        if selector.with_adapters:
            return fingerprint.of_model == selector.fingerprint.of_model
        return fingerprint == selector.fingerprint
    if isinstance(selector, ByField):
        mine: object = getattr(fingerprint, selector.name)
        # 1 and True are equal, and neither is meant where the other is said.
        return type(mine) is type(selector.value) and mine == selector.value
    return True


# -- one adapter -----------------------------------------------------------------------


def _of_adapter(
    its: list[PrefixTree], trees: list[PrefixTree], numbers: Numbers | None, grave: Grave
) -> Reach:
    """Return all in trees of an adapter, and what it has in others, if it has numbers."""
    whole = _of_trees(its, grave)
    if numbers is None:
        return whole
    others = [tree for tree in trees if tree not in its]
    return replace(
        whole,
        numbers=numbers,
        kill=lambda: [
            *whole.kill(),
            *(
                _kill_subtree(tree, node, grave)
                for tree in others
                for node in split_off(tree, numbers)
            ),
        ],
    )


# -- whole audiences -------------------------------------------------------------------


def _of_trees(trees: list[PrefixTree], grave: Grave) -> Reach:
    its = list(trees)
    return Reach(trees=its, kill=lambda: [_kill_tree(tree, grave) for tree in its])


def _kill_tree(tree: PrefixTree, grave: Grave) -> KilledBlocks:
    is_unswept = _is_unswept(tree)
    return _total(kill_all(tree, grave), is_unswept=is_unswept)


def _of_domain(selector: ByDomain, trees: list[PrefixTree], grave: Grave) -> Reach:
    its = list(trees)

    def is_its(audience: Audience) -> bool:
        if selector.below:
            return audience.domain.is_within(selector.domain)
        return audience.domain == selector.domain

    return Reach(
        trees=its,
        kill=lambda: [
            _kill_audiences(tree, is_its, grave, is_closed_below=selector.below)
            for tree in its
        ],
        whose=is_its,
    )


def _kill_audiences(
    tree: PrefixTree,
    whose: Callable[[Audience], bool],
    grave: Grave,
    *,
    is_closed_below: bool,
) -> KilledBlocks:
    is_unswept = _is_unswept(tree)
    its = [
        readers
        for readers in tree.audiences.present()
        if not readers.is_throwaway and whose(readers.audience)
    ]
    # What domains below hung there goes with it. Where they are meant too, that is in the
    # totals, and nothing is left to look for.
    tops = [
        entry
        for readers in its
        if readers.is_approved and not is_closed_below
        for entry in readers.entries
    ]
    hanging = [node for node in nodes_below(tree, tops) if not whose(node.readers.audience)]
    below = count_blocks(hanging)
    for readers in its:
        kill_audience(tree, readers.audience, grave)
    total = _total(its, is_unswept=is_unswept)
    return KilledBlocks(
        num_blocks=total.num_blocks + below.num_blocks,
        num_leased=total.num_leased + below.num_leased,
        is_upper_bound=total.is_upper_bound,
    )


def _total(lost: list[Readers], *, is_unswept: bool) -> KilledBlocks:
    published = [readers for readers in lost if not readers.is_throwaway]
    num_blocks = sum(readers.num_blocks for readers in published)
    num_idle = sum(readers.num_idle_blocks for readers in published)
    return KilledBlocks(
        num_blocks=num_blocks,
        num_leased=num_blocks - num_idle,
        is_upper_bound=is_unswept and num_blocks > 0,
    )


def _is_unswept(tree: PrefixTree) -> bool:
    return tree.dead.holds_blocks() or bool(tree.age_cursor)


def _kill_older(tree: PrefixTree, born_before: float, cut: Grave) -> KilledBlocks:
    is_unswept = bool(tree.age_cursor)
    lost = kill_older(tree, born_before, cut)
    return KilledBlocks(
        num_blocks=lost.num_blocks,
        num_leased=lost.num_leased,
        is_upper_bound=lost.is_upper_bound or (is_unswept and lost.num_blocks > 0),
    )


# -- one prefix ------------------------------------------------------------------------


def _of_prefix(selector: ByPrefix, trees: Trees, grave: Grave) -> Reach:
    size = selector.fingerprint.block_size
    limit = len(selector.tokens) // size
    if limit < 1:
        raise InvalidInputError(
            f"a prefix to invalidate needs at least one block, {size} tokens, "
            f"got {len(selector.tokens)}"
        )
    whole = np.ascontiguousarray(selector.tokens[: limit * size])
    its = trees.where(lambda it: it == selector.fingerprint)
    domain = selector.domain

    def is_its(audience: Audience) -> bool:
        is_meant = selector.kind is None or audience.kind is selector.kind
        return is_meant and (domain is None or audience.domain == domain)

    return Reach(
        trees=its,
        kill=lambda: [
            _kill_subtree(tree, node, grave)
            for tree in its
            for node in _tops(tree, whole, domain, is_its)
        ],
        whose=is_its,
        prefix=whole.tobytes(),
    )


def _kill_subtree(tree: PrefixTree, node: Node, grave: Grave) -> KilledBlocks:
    killed = kill_subtree(tree, node, grave.at, selector=grave.selector)
    is_counted_before = bool(tree.age_cursor) and killed.num_blocks > 0
    return KilledBlocks(
        num_blocks=killed.num_blocks,
        num_leased=killed.num_leased,
        is_upper_bound=is_counted_before,
    )


def _tops(
    tree: PrefixTree,
    whole: TokenIds,
    domain: Domain | None,
    is_its: Callable[[Audience], bool],
) -> list[Node]:
    """Return the highest nodes that begin with ``whole`` and belong to who is meant.

    Splits where such a block lies inside a run: what comes before it stays.
    """
    tops: list[Node] = []
    for node, num_blocks in _ends(tree, whole, domain):
        if is_its(node.readers.audience):
            # The run's part before the prefix's last block does not begin with it.
            if num_blocks > 1:
                tree.split(node, num_blocks - 1)
            tops.append(node)
        else:
            # Of others, or of all readers above. What is meant may still hang below.
            tops.extend(
                entry
                for readers in tree.audiences.present()
                if is_its(readers.audience) and not readers.is_throwaway
                for entry in readers.entries
                if _is_below(entry, node) and not _has_above(entry, is_its)
            )
    return list(dict.fromkeys(tops))


def _is_below(entry: Node, node: Node) -> bool:
    at: Node | None = entry.parent
    while at is not None and at is not node:
        at = at.parent
    return at is not None


def _has_above(entry: Node, is_its: Callable[[Audience], bool]) -> bool:
    at = entry.parent
    while at is not None and not at.is_root:
        if is_its(at.readers.audience):
            return True
        at = at.parent
    return False


def _ends(
    tree: PrefixTree, whole: TokenIds, domain: Domain | None
) -> list[tuple[Node, int]]:
    """Return the nodes in which the last block of ``whole`` lies, and where.

    The second is how many blocks of the node belong to it. O(present audiences) a node.
    """
    size = tree.block_size
    present = [
        readers
        for readers in tree.audiences.present()
        if not readers.is_throwaway
        and (
            domain is None
            or readers.audience.domain == domain
            or (readers.is_approved and domain.is_within(readers.audience.domain))
        )
    ]
    found: list[tuple[Node, int]] = []
    pending = [tree.root]
    while pending:
        node = pending.pop()
        rest = whole[node.end :]
        first = rest[:size].tobytes()
        for readers in present:
            child = (node.children or {}).get((readers, first))
            if child is None:
                continue
            length = min(child.num_tokens, len(rest))
            if not np.array_equal(child.tokens[:length], rest[:length]):
                continue
            if length == len(rest):
                found.append((child, length // size))
            else:
                pending.append(child)
    return found
