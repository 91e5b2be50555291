"""Listing: the cached runs as values, for people to look at.

Only what can be reached is listed. A salt is never part of it, only whether there is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefold.blocks.table import TokenIds
from prefold.errors import InvalidInputError
from prefold.identity.domain import AudienceKind
from prefold.tree.dead import all_children
from prefold.tree.mark import Mark
from prefold.tree.node import Node
from prefold.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingBounds:
    """How much is listed at most.

    Attributes:
        max_depth: Runs on one path; 1 lists only what prompts begin with.

    Raises:
        InvalidInputError: A bound is below 1.
    """

    max_nodes: int
    max_depth: int

    def __post_init__(self) -> None:
        for name, value in (("max_nodes", self.max_nodes), ("max_depth", self.max_depth)):
            if value < 1:
                raise InvalidInputError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run of cached blocks.

    Attributes:
        parent: Index of the run it continues, in the same listing; None for none.
        depth: Runs on its path, itself included.
        tree: Number of its tree: which fingerprint it was computed under.
        start: Position of its first token.
        is_partial: Whether its one block is filled in part only.
        domain: Path of the domain that its readers belong to.
        is_salted: Whether a salt narrows that domain.
        num_leases: Running sequences, copies under way and pinned approvals that use it.
        num_hits: Requests that began by matching it.
        idle_s: Since a lease last came or went.
        num_children: Runs that continue it, listed or not.
        token_ids: Its tokens, a copy.
        labels: Of the approvals that let its readers read it. Without one, a run of an
            approved kind is only passed through.
    """

    parent: int | None
    depth: int
    tree: int
    start: int
    num_tokens: int
    num_blocks: int
    is_partial: bool
    kind: AudienceKind
    domain: str
    is_salted: bool
    num_leases: int
    num_hits: int
    idle_s: float
    num_children: int
    token_ids: TokenIds = field(repr=False)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheListing:
    """Runs, parents before children, from the beginnings of prompts outwards.

    Attributes:
        num_nodes: All there are, those not listed included, and dead ones not yet swept.
        is_complete: Whether everything that can be reached is listed.
    """

    runs: tuple[ListedRun, ...]
    num_nodes: int
    is_complete: bool


def list_runs(
    trees: Sequence[PrefixTree],
    bounds: ListingBounds,
    now: float,
    label_by_mark: Mapping[Mark, str],
) -> CacheListing:
    """List what the trees hold, as far as the bounds go. O(nodes listed)."""
    runs: list[ListedRun] = []
    is_complete = True
    waiting: deque[tuple[int, PrefixTree, Node, int | None, int]] = deque()
    for number, tree in enumerate(trees):
        for child in _live_children(tree, tree.root):
            waiting.append((number, tree, child, None, 1))
    while waiting and len(runs) < bounds.max_nodes:
        number, tree, node, parent, depth = waiting.popleft()
        children = _live_children(tree, node)
        if depth < bounds.max_depth:
            for child in children:
                waiting.append((number, tree, child, len(runs), depth + 1))
        elif children:
            is_complete = False
        run = _listed(number, node, parent, depth, len(children), now)
        labels = sorted(label_by_mark[mark] for mark in node.marks if mark.is_live(now))
        runs.append(replace(run, labels=tuple(labels)))
    return CacheListing(
        runs=tuple(runs),
        num_nodes=sum(tree.num_nodes for tree in trees),
        is_complete=is_complete and not waiting,
    )


def _live_children(tree: PrefixTree, node: Node) -> list[Node]:
    return [child for child in all_children(node) if not tree.audiences.is_dead(child)]


def _listed(
    tree: int, node: Node, parent: int | None, depth: int, num_children: int, now: float
) -> ListedRun:
    audience = node.readers.audience
    return ListedRun(
        parent=parent,
        depth=depth,
        tree=tree,
        start=node.start,
        num_tokens=node.num_tokens,
        num_blocks=node.num_blocks,
        is_partial=node.is_partial,
        kind=audience.kind,
        domain=audience.domain.path,
        is_salted=audience.domain.salt is not None,
        num_leases=node.count,
        num_hits=node.num_hits,
        idle_s=max(now - node.last_used_at, 0.0),
        num_children=num_children,
        token_ids=node.tokens.copy(),
    )
