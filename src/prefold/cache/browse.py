"""Browse: the tree a few runs at a time, for people who look around in it.

A listing goes through the tree from its beginnings; whoever browses asks for the children
of one run, or searches, and gets a bounded number of rows whatever the tree holds. Runs
are named by handles, which say nothing of their content and outlive splits and merges of
the same node; a run that is gone has none.

Nothing here changes what is cached; a run can be pinned, which keeps it from eviction.
"""

from __future__ import annotations

import heapq
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from prefold.blocks.table import TokenIds, check_tokens
from prefold.cache.approval import Approval
from prefold.cache.approved import ApprovedPrefixes
from prefold.cache.browsed import (
    BrowsedRun,
    FoundRun,
    PageCursor,
    PathContent,
    RunApproval,
    RunPage,
    SearchResult,
)
from prefold.cache.children import is_there, num_children, walk_children
from prefold.cache.prefix_ends import PrefixEnds
from prefold.cache.room import Room
from prefold.cache.trees import Trees
from prefold.errors import InvalidInputError, InvariantError
from prefold.identity.fingerprint import Fingerprint
from prefold.tree.mark import Mark
from prefold.tree.node import Node, Readers
from prefold.tree.path import path_to
from prefold.tree.prefix_tree import PrefixTree

#: Dead children that one page passes over at most: they wait for somebody to need room.
MAX_PASSED_OVER = 2_000

#: Audiences and runs that one search looks at, at most.
MAX_LOOKED_AT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What all rows of one answer have in common: its moment, approvals and pins."""

    now: float
    by_mark: Mapping[Mark, Approval]
    num_pins: Counter[Node]


class TreeBrowser:
    """Looks around in a cache's trees. Owned by the cache; one thread.

    Invariants: every handle names one node, and a node has at most one.
    """

    __slots__ = (
        "_approved",
        "_clock",
        "_handles",
        "_nodes",
        "_num_made",
        "_room",
        "_stem",
        "_trees",
    )

    def __init__(
        self,
        trees: Trees,
        approved: ApprovedPrefixes,
        room: Room,
        clock: Callable[[], float],
    ) -> None:
        self._trees = trees
        self._approved = approved
        self._room = room
        self._clock = clock
        # Weak both ways: to be looked at must not keep anything alive.
        self._nodes: WeakValueDictionary[str, Node] = WeakValueDictionary()
        self._handles: WeakKeyDictionary[Node, str] = WeakKeyDictionary()
        self._num_made = 0
        # So that a handle of another process, or before a restart, names nothing.
        self._stem = secrets.token_hex(4)

    # -- pages ---------------------------------------------------------------------

    def children(
        self,
        parent: str | None,
        *,
        limit: int,
        num_text_tokens: int,
        cursor: PageCursor | None = None,
    ) -> RunPage | None:
        """Return children of a run, newest first, partial ones last; None if it is gone.

        Pages leave out no run that is there all the while, and may repeat one where
        others went in between. O(runs of the page), but for skipping to its beginning,
        a matter of nanoseconds a run.

        Args:
            parent: The run's handle; None for what prompts begin with.
            limit: Rows at most.
            num_text_tokens: Tokens of each that are wanted, at most.
            cursor: Where to go on.
        """
        places = [(tree, tree.root) for tree in reversed(self._trees.all())]
        if parent is not None:
            node = self._node(parent)
            if node is None:
                return None
            places = [(self._trees.holding(node.readers), node)]
        shown = self._shown()
        runs: list[BrowsedRun] = []
        at, is_last = cursor, True
        for number, (tree, child, after) in enumerate(walk_children(places, cursor)):
            if len(runs) >= limit or number >= limit + MAX_PASSED_OVER:
                is_last = False
                break
            at = after
            if is_there(tree, child, shown.now):
                runs.append(self._describe(tree, child, num_text_tokens, shown))
        return RunPage(
            runs=tuple(runs),
            num_children=sum(num_children(node) for _, node in places),
            following=None if is_last else at,
        )

    def run(self, handle: str, *, num_text_tokens: int) -> BrowsedRun | None:
        """Return one run; None if it is gone."""
        node = self._node(handle)
        if node is None:
            return None
        tree = self._trees.holding(node.readers)
        return self._describe(tree, node, num_text_tokens, self._shown())

    def content(self, handle: str) -> PathContent | None:
        """Return what a run's prompts begin with; None if it is gone. O(tokens)."""
        node = self._node(handle)
        if node is None:
            return None
        tree = self._trees.holding(node.readers)
        path = path_to(node)
        return PathContent(
            fingerprint=self._trees.fingerprint_of(tree),
            domain=node.readers.audience.domain,
            kind=node.readers.audience.kind,
            start=node.start,
            is_partial=node.is_partial,
            token_ids=np.concatenate([each.tokens for each in path]),
        )

    # -- searches ------------------------------------------------------------------

    def find_domain(self, text: str, *, limit: int, num_text_tokens: int) -> SearchResult:
        """Return where domains whose path contains a text begin, most hits first.

        Looks at ``MAX_LOOKED_AT`` audiences and runs at most.
        """
        shown = self._shown()
        is_complete = True
        entries: list[tuple[PrefixTree, Node]] = []
        budget = MAX_LOOKED_AT
        for tree, readers in self._audiences():
            budget -= 1
            if budget <= 0:
                is_complete = False
                break
            if text not in readers.audience.domain.path:
                continue
            its = list(islice(readers.entries, budget))
            is_complete = is_complete and len(its) == len(readers.entries)
            budget -= len(its)
            entries += [(tree, node) for node in its if is_there(tree, node, shown.now)]
        best = heapq.nlargest(
            limit, entries, key=lambda it: (it[1].num_hits, it[1].last_used_at)
        )
        return SearchResult(
            found=tuple(
                FoundRun(
                    run=self._describe(tree, node, num_text_tokens, shown),
                    num_matched_tokens=None,
                )
                for tree, node in best
            ),
            is_complete=is_complete and len(best) == len(entries),
        )

    def find_prefix(
        self,
        fingerprint: Fingerprint,
        token_ids: TokenIds,
        *,
        domain: str = "",
        limit: int,
        num_text_tokens: int,
    ) -> SearchResult:
        """Return the runs that a prompt's tokens lead to, those it follows longest first.

        Of every audience, whoever may read it. Where the prompt ends or parts from the
        tree inside a block, only the children that a copy could be made from are looked
        at: at most four for each audience and first token. Looks up
        ``MAX_LOOKED_AT`` children at most.

        Args:
            fingerprint: Of the model that the prompt was read for.
            token_ids: What to search for.
            domain: Only audiences whose path contains this.
            limit: Rows at most.
            num_text_tokens: Tokens of each that are wanted, at most.

        Raises:
            InvalidInputError: ``token_ids`` are empty or not int64.
        """
        check_tokens(token_ids)
        shown, tree = self._shown(), self._trees.peek(fingerprint)
        present = [it for it in tree.audiences.present() if not it.is_throwaway]
        looked_at = present[:MAX_LOOKED_AT]
        walk = PrefixEnds(tree, looked_at, shown.now, max_looked_at=MAX_LOOKED_AT)
        ends = [
            (node, matched)
            for node, matched in walk.of(token_ids)
            if domain in node.readers.audience.domain.path
        ]
        found = heapq.nlargest(limit, ends, key=lambda it: (it[1], it[0].num_hits))
        return SearchResult(
            found=tuple(
                FoundRun(
                    run=self._describe(tree, node, num_text_tokens, shown),
                    num_matched_tokens=matched,
                )
                for node, matched in found
            ),
            is_complete=walk.is_complete
            and len(looked_at) == len(present)
            and len(found) == len(ends),
        )

    # -- pins ----------------------------------------------------------------------

    def pin(self, handle: str, num_kept: int) -> bool:
        """Keep a run, and all that it continues, from eviction; False if it is gone.

        Args:
            handle: The run's.
            num_kept: Blocks that an open request needs up to.

        Raises:
            InvalidInputError: It is less than a block, or one request's alone.
            CapacityError: Too much would be pinned.
        """
        node = self._node(handle)
        if node is None:
            return False
        if node.is_partial or node.readers.is_throwaway or node.is_unmarked:
            raise InvalidInputError(
                "only runs of whole blocks that others can find can be pinned; choose the "
                "run that this one continues"
            )
        self._approved.pins.pin(node, num_kept)
        return True

    def unpin(self, handle: str) -> bool:
        """Let a run that was pinned be evicted again; False if it is not pinned."""
        node = self._node(handle)
        if node is None or not self._approved.pins.unpin(node):
            return False
        self._room.settle()
        return True

    # -- checks --------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless handles and nodes name each other."""
        for handle, node in self._nodes.items():
            if self._handles.get(node) != handle:
                raise InvariantError("a handle names a node that does not know it")
        if len(self._handles) != len(self._nodes):
            raise InvariantError("a node has several handles")

    # -- inside --------------------------------------------------------------------

    def _shown(self) -> _Shown:
        return _Shown(
            now=self._clock(),
            by_mark=self._approved.by_mark(),
            num_pins=self._approved.pins.counts(),
        )

    def _audiences(self) -> Iterator[tuple[PrefixTree, Readers]]:
        for tree in reversed(self._trees.all()):
            for readers in tree.audiences.present():
                if not readers.is_throwaway:
                    yield tree, readers

    def _node(self, handle: str) -> Node | None:
        node = self._nodes.get(handle)
        if node is None or node.is_freed:
            return None
        tree = self._trees.holding(node.readers)
        is_gone = tree.audiences.is_doomed(node) or node.is_expired(self._clock())
        return None if is_gone else node

    def _handle(self, node: Node) -> str:
        handle = self._handles.get(node)
        if handle is None:
            self._num_made += 1
            handle = f"{self._stem}-{self._num_made}"
            self._handles[node] = handle
            self._nodes[handle] = node
        return handle

    def _describe(
        self,
        tree: PrefixTree,
        node: Node,
        num_text_tokens: int,
        shown: _Shown,
    ) -> BrowsedRun:
        audience = node.readers.audience
        now = shown.now
        live = [shown.by_mark[mark] for mark in node.marks if mark.is_live(now)]
        ends_never = node.expires_at == math.inf
        return BrowsedRun(
            handle=self._handle(node),
            path=tuple(self._handle(above) for above in path_to(node)[:-1]),
            tree=self._trees.all().index(tree),
            start=node.start,
            num_tokens=node.num_tokens,
            num_blocks=node.num_blocks,
            is_partial=node.is_partial,
            kind=audience.kind,
            domain=audience.domain.path,
            is_salted=audience.domain.salt is not None,
            num_leases=node.count - shown.num_pins[node],
            num_hits=node.num_hits,
            num_forks=node.num_forks,
            idle_s=max(now - node.last_used_at, 0.0),
            age_s=max(now - node.created_at, 0.0),
            expires_in_s=None if ends_never else max(node.expires_at - now, 0.0),
            priority=node.priority,
            num_children=num_children(node),
            is_pinned=shown.num_pins[node] > 0,
            is_pin=self._approved.pins.is_by_operator(node),
            approvals=tuple(
                RunApproval(
                    approval_id=approval.approval_id,
                    label=approval.label,
                    is_pinned=approval.pinned,
                )
                for approval in sorted(live, key=lambda it: it.label)
            ),
            token_ids=node.tokens[:num_text_tokens].copy(),
        )
