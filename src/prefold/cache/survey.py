"""Survey: what a prompt would hit in a tree, and why not more. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from prefold.blocks.table import BlockIds, TokenIds
from prefold.cache.access import Access
from prefold.cache.explain import MissKind, MissReason
from prefold.cache.frontier import FrontierMatch
from prefold.identity.domain import Audience, AudienceKind
from prefold.tree.node import LossCause, Node, Tombstone
from prefold.tree.path import path_ids
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.walk import (
    MIN_COPY_TOKENS,
    Agreement,
    Endpoint,
    View,
    best_agreement,
    longest_paths,
)

_KINDS = {
    LossCause.EVICTED: MissKind.EVICTED,
    LossCause.INVALIDATED: MissKind.INVALIDATED,
    LossCause.WITHDRAWN: MissKind.WITHDRAWN,
    LossCause.EXPIRED: MissKind.EXPIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What ``acquire`` would find at this moment.

    Attributes:
        num_matched_tokens: In whole blocks, shared in place.
        num_hit_tokens: With those that would be copied out of one more block.
        frontier: A running sequence that will publish more of this prompt, or None.
        end: Where in the tree the match ends.
    """

    num_matched_tokens: int
    num_hit_tokens: int
    miss: MissReason
    frontier: FrontierMatch | None
    end: Node | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Survey:
    """The ends of the longest readable paths, widest first, and what lies beyond.

    Attributes:
        at: When it was made, on the cache's clock.
        lost: What is known of what was lost there; None if nothing is.
    """

    ends: Sequence[Endpoint]
    agreement: Agreement | None
    num_matched_tokens: int
    num_copy_tokens: int
    miss: MissReason
    at: float
    lost: Tombstone | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlocks:
    """The blocks behind a match: what is kept beside their KV can be looked up by them.

    Attributes:
        block_ids: Whole blocks from position 0 on, and the one to be copied from.
        num_tokens: Tokens of the prompt that they hold.
    """

    block_ids: BlockIds
    num_tokens: int


def survey(
    tree: PrefixTree,
    audiences: Sequence[Audience],
    tokens: TokenIds,
    access: Access,
    limit: int | None = None,
) -> Survey:
    """Walk the tree for ``tokens``, never matching the last one, or beyond ``limit``."""
    view = tree.view(audiences, is_approving=access.approves)
    if limit is not None and limit < len(tokens) - 1:
        found = _survey(tree, view, tokens[: limit + 1], access)
        if found.miss.kind is not MissKind.COMPLETE:
            return found
        reason = MissReason(kind=MissKind.NO_LOGPROBS, at_token=limit)
        return replace(found, miss=reason)
    return _survey(tree, view, tokens, access)


def found_blocks(tree: PrefixTree, found: Survey) -> FoundBlocks:
    """Return the blocks of a match. O(blocks)."""
    end = found.ends[0]
    ids = [_path_ids(tree, end)]
    agreement = found.agreement
    if found.num_copy_tokens and agreement is not None:
        source, at = agreement.child, 0
        if source is None:
            source, at = agreement.endpoint.node, agreement.endpoint.num_blocks
        ids.append(source.block_ids[at : at + 1])
    return FoundBlocks(
        block_ids=np.concatenate(ids),
        num_tokens=found.num_matched_tokens + found.num_copy_tokens,
    )


def _path_ids(tree: PrefixTree, end: Endpoint) -> BlockIds:
    ids = path_ids(end.node, below=tree.root)
    return ids[: len(ids) - end.node.num_blocks + end.num_blocks]


def _survey(tree: PrefixTree, view: View, tokens: TokenIds, access: Access) -> Survey:
    size = tree.block_size
    start = Endpoint(tree.root, 0, 0, 0)
    if not access.read:
        read_off = MissReason(kind=MissKind.READ_OFF, at_token=0)
        return Survey([start], None, 0, 0, read_off, view.now)
    ends = longest_paths(start, tokens, (len(tokens) - 1) // size, view, size)
    matched = ends[0].position * size
    agreement = best_agreement(ends, tokens, view, size)
    agreed = agreement.num_tokens if agreement is not None else 0
    usable = min(agreed, len(tokens) - 1 - matched)
    copied = usable if usable >= MIN_COPY_TOKENS else 0
    lost = _tombstone(ends, tokens, view, size)
    miss = _reason(ends, tokens, size, agreed, lost)
    return Survey(ends, agreement, matched, copied, miss, view.now, lost)


def _reason(
    ends: Sequence[Endpoint],
    tokens: TokenIds,
    size: int,
    agreed: int,
    tombstone: Tombstone | None,
) -> MissReason:
    matched = ends[0].position * size
    if matched + agreed >= len(tokens) - 1:
        return MissReason(kind=MissKind.COMPLETE, at_token=len(tokens) - 1)
    if tombstone is not None:
        return MissReason(
            kind=_KINDS[tombstone.cause],
            at_token=matched + agreed,
            lost_at=tombstone.at,
            policy=tombstone.policy,
            num_lost_blocks=tombstone.num_blocks,
        )
    if agreed or (matched and any(_goes_on(end) for end in ends)):
        return MissReason(kind=MissKind.DIVERGED, at_token=matched + agreed)
    if len(tokens) <= size:
        return MissReason(kind=MissKind.TOO_SHORT, at_token=0)
    return MissReason(kind=MissKind.NEVER_SEEN, at_token=matched)


def _tombstone(
    ends: Sequence[Endpoint], tokens: TokenIds, view: View, size: int
) -> Tombstone | None:
    for end in ends:
        begin = end.position * size
        if not end.is_node_end or len(tokens) < begin + size:
            continue
        lost = tokens[begin : begin + size].tobytes()
        for rank, readers in enumerate(view.readable):
            tombstone = (end.node.tombstones or {}).get((readers, lost))
            if tombstone is not None:
                return tombstone
            child = view.child(end.node, rank, lost)
            if child is not None and child.marks and not view.is_open(child):
                return _expired(child)
    return None


def _expired(node: Node) -> Tombstone:
    """Return what will hang there once the cache has noted that the time is over."""
    return Tombstone(
        at=max(mark.expires_at for mark in node.marks),
        cause=LossCause.EXPIRED,
        policy=None,
        num_blocks=node.num_blocks,
    )


def _goes_on(end: Endpoint) -> bool:
    # Everything below a node of the reader's own is its own. Below a shared node hang
    # strangers' children too, and where it is split depends on strangers. Neither may
    # show, so there only an agreement tells.
    if end.node.readers.audience.kind is not AudienceKind.OWN:
        return False
    return not end.is_node_end or end.node.has_children
