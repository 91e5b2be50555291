"""Survey: what a prompt would hit in a tree, and why not more. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from prefold.blocks.table import BlockIds, TokenIds
from prefold.cache.access import Access
from prefold.cache.explain import MissKind, MissReason
from prefold.cache.frontier import FrontierMatch
from prefold.cache.losses import find_loss
from prefold.identity.domain import Audience, AudienceKind
from prefold.tree.loss import LossCause, Tombstone
from prefold.tree.node import Node
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
    LossCause.LAPSED: MissKind.EXPIRED,
}
#: What ended was leave to read it.
_OF_APPROVALS = (LossCause.WITHDRAWN, LossCause.LAPSED)


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
        found = _survey(tree, view, tokens[: limit + 1], access, audiences)
        if found.miss.kind is not MissKind.COMPLETE:
            return found
        reason = MissReason(kind=MissKind.NO_LOGPROBS, at_token=limit)
        return replace(found, miss=reason)
    return _survey(tree, view, tokens, access, audiences)


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


def _survey(
    tree: PrefixTree,
    view: View,
    tokens: TokenIds,
    access: Access,
    audiences: Sequence[Audience],
) -> Survey:
    size = tree.block_size
    start = Endpoint(tree.root, 0, 0, 0)
    if not access.read:
        read_off = MissReason(kind=MissKind.READ_OFF, at_token=0)
        return Survey([start], None, 0, 0, read_off, view.now)
    ends = longest_paths(start, tokens, (len(tokens) - 1) // size, view, size)
    matched = ends[0].position * size
    agreement = best_agreement(ends, tokens, view, size)
    agreed = 0 if agreement is None else agreement.num_tokens
    usable = min(agreed, len(tokens) - 1 - matched)
    copied = usable if usable >= MIN_COPY_TOKENS else 0
    lost = find_loss(tree, view, audiences, ends, tokens)
    miss = _reason(ends, tokens, size, agreement, lost)
    return Survey(ends, agreement, matched, copied, miss, view.now, lost)


def _reason(
    ends: Sequence[Endpoint],
    tokens: TokenIds,
    size: int,
    agreement: Agreement | None,
    lost: Tombstone | None,
) -> MissReason:
    matched = ends[0].position * size
    agreed = 0 if agreement is None else agreement.num_tokens
    if matched + agreed >= len(tokens) - 1:
        return MissReason(kind=MissKind.COMPLETE, at_token=len(tokens) - 1)
    place = matched + agreed
    if lost is not None:
        return _of_loss(lost, place)
    if agreement is not None and _ends_there(agreement):
        return MissReason(kind=MissKind.NEVER_SEEN, at_token=place)
    if agreed or (matched and any(_goes_on(end) for end in ends)):
        return MissReason(kind=MissKind.DIVERGED, at_token=place)
    kind = MissKind.TOO_SHORT if len(tokens) <= size else MissKind.NEVER_SEEN
    return MissReason(kind=kind, at_token=matched)


def _of_loss(lost: Tombstone, at_token: int) -> MissReason:
    return MissReason(
        kind=_KINDS[lost.cause],
        at_token=at_token,
        lost_at=lost.at,
        policy=lost.policy,
        pressure=lost.pressure,
        selector=lost.selector,
        num_lost_blocks=lost.num_blocks,
        was_approved=lost.cause in _OF_APPROVALS,
    )


def _ends_there(agreement: Agreement) -> bool:
    """Whether the request that left what agrees had ended there, and not gone on."""
    child = agreement.child
    return (
        child is not None and child.is_partial and agreement.num_tokens == child.num_tokens
    )


def _goes_on(end: Endpoint) -> bool:
    # Everything below a node of the reader's own is its own. Below a shared node hang
    # strangers' children too, and where it is split depends on strangers. Neither may
    # show, so there only an agreement tells.
    if end.node.readers.audience.kind is not AudienceKind.OWN:
        return False
    return not end.is_node_end or end.node.has_children
