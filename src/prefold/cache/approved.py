"""Approved prefixes: who approved what, and until when.

::

    root ── A ── B ── C      approval 1 marks A and B, approval 2 marks A, B and C
                  `── own    a reader's continuation hangs below, not marked

Approvals of one domain stand in one audience, self-contained from the root. Each marks
every node of its path, and is taken off them when it ends: a node that none is left on
stays where it is while somebody uses it or something hangs below, and is freed if not.
What anybody may read is decided by the walk alone, from the marks.

Only a request that approves writes here. Where approved blocks were evicted, their
readers compute them for themselves; approving again, which is allowed, brings them back.
"""

from __future__ import annotations

import heapq
import math
import secrets
from collections.abc import Callable, Collection

from prefold.blocks.table import TokenIds, check_tokens
from prefold.cache.approval import Approval, ApprovalId, ApprovalTerms
from prefold.cache.lease import Lease
from prefold.cache.marking import cut_at, hang_tombstone, mark_path
from prefold.cache.pins import Pins
from prefold.cache.trees import Trees
from prefold.errors import CapacityError, InvalidInputError, InvariantError, StateError
from prefold.eviction.quota import Quotas
from prefold.identity.domain import Domain, approving_audiences
from prefold.identity.fingerprint import Fingerprint
from prefold.tree.invalidation import KilledBlocks, count_blocks
from prefold.tree.loss import LossCause, Tombstone
from prefold.tree.mark import Mark
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.walk import Endpoint, View, longest_paths


class HeldApproval:
    """An approval with its place in the tree. Compared by identity.

    Attributes:
        pin: The node that its path count ends at, while it is pinned.
    """

    __slots__ = ("approval", "mark", "pin", "tree")

    def __init__(self, approval: Approval, tree: PrefixTree, mark: Mark) -> None:
        self.approval = approval
        self.tree = tree
        self.mark = mark
        self.pin: Node | None = None

    def path(self) -> list[Node]:
        """Return the nodes that have its mark, from the root down. O(tokens)."""
        approval = self.approval
        readable = self.tree.audiences.readable(approving_audiences(approval.domain))
        if not readable:
            return []
        size = self.tree.block_size
        # Everything that is there, whatever its age.
        view = View(readable, 0.0, -math.inf, is_approving=True)
        start = Endpoint(self.tree.root, 0, 0, 0)
        limit = len(approval.tokens) // size
        [end] = longest_paths(start, approval.tokens, limit, view, size)
        return [node for node in path_to(end.node) if self.mark in node.marks]


class ApprovedPrefixes:
    """The approvals that hold. Owned by the cache; one thread.

    Attributes:
        pins: What no eviction takes, operators' pins included.

    Invariants:
        - a mark is on the nodes of its path, from the root on without a gap
        - a pinned approval's path is whole, and counted once more than its leases
        - no two approvals of a domain have the same tokens, or the same label, for one
          fingerprint
    """

    __slots__ = (
        "_by_content",
        "_by_id",
        "_by_label",
        "_clock",
        "_ends",
        "_num_made",
        "_quotas",
        "_trees",
        "pins",
    )

    def __init__(
        self, num_blocks: int, quotas: Quotas, trees: Trees, clock: Callable[[], float]
    ) -> None:
        self._quotas = quotas
        self.pins = Pins(num_blocks, quotas, trees)
        self._trees = trees
        self._clock = clock
        self._num_made = 0
        self._by_id: dict[ApprovalId, HeldApproval] = {}
        self._by_content: dict[tuple[PrefixTree, Domain, bytes], HeldApproval] = {}
        self._by_label: dict[tuple[PrefixTree, Domain, str], HeldApproval] = {}
        # When each ends by itself; those that ended otherwise are skipped.
        self._ends: list[tuple[float, int, HeldApproval]] = []

    def approvals(self) -> tuple[Approval, ...]:
        """Return those that hold at this moment, oldest first."""
        now = self._clock() if self._ends else 0.0
        held = self._by_id.values()
        return tuple(each.approval for each in held if each.mark.is_live(now))

    def labels(self) -> dict[Mark, str]:
        return {held.mark: held.approval.label for held in self._by_id.values()}

    def by_mark(self) -> dict[Mark, Approval]:
        return {held.mark: held.approval for held in self._by_id.values()}

    def held(self) -> list[HeldApproval]:
        return list(self._by_id.values())

    # -- approve -------------------------------------------------------------------

    def check(
        self,
        fingerprint: Fingerprint,
        domain: Domain,
        tokens: TokenIds,
        terms: ApprovalTerms,
    ) -> None:
        """Refuse, before anything is computed, what could not be approved then.

        Raises:
            InvalidInputError: The domain is salted, ``tokens`` are less than a block, or
                an approval that holds is in conflict; the message says what to do.
        """
        check_tokens(tokens)
        approving_audiences(domain)
        self._find(self._trees.peek(fingerprint), domain, tokens, terms)

    def _find(
        self, tree: PrefixTree, domain: Domain, tokens: TokenIds, terms: ApprovalTerms
    ) -> HeldApproval | None:
        """Return the approval that is exactly this one, or None if it would be new.

        Raises:
            InvalidInputError: ``tokens`` are less than a block; or one in the same domain
                has the label with other tokens, or the tokens with other terms.
        """
        self.expire_due()
        size = tree.block_size
        num_blocks = len(tokens) // size
        if num_blocks < 1:
            raise InvalidInputError(
                f"a prefix to approve needs at least one block, {size} tokens, "
                f"got {len(tokens)}"
            )
        content = (tree, domain, tokens[: num_blocks * size].tobytes())
        same = self._by_content.get(content)
        if same is not None and same.approval.terms != terms:
            raise InvalidInputError(
                f"this prefix is approved for {domain.path!r} already, as "
                f"{same.approval.label!r} with other terms; withdraw that approval "
                f"({same.approval.approval_id}) first"
            )
        named = self._by_label.get((tree, domain, terms.label))
        if named is not None and named is not same:
            raise InvalidInputError(
                f"the label {terms.label!r} is taken in {domain.path!r} by another prefix; "
                f"choose another label, or withdraw that approval "
                f"({named.approval.approval_id}) first"
            )
        return same

    def approve(
        self,
        lease: Lease,
        num_tokens: int,
        terms: ApprovalTerms,
        num_kept: int,
    ) -> Approval:
        """Approve the whole blocks among the first ``num_tokens`` of a lease's tokens.

        O(nodes of the path). Approved again with equal terms, it is the same approval,
        and its end is not put off.

        Raises:
            InvalidInputError: As ``check``, or not so many tokens are committed.
            StateError: The lease is not one that approves, or was invalidated meanwhile.
            CapacityError: Too many blocks would be pinned, or fewer than ``num_kept``
                left over.
        """
        lease.check_live()
        if not lease.access.approves:
            raise StateError("only a lease that was acquired to approve can be approved")
        if lease.is_doomed:
            raise StateError("what was to be approved was invalidated meanwhile; try again")
        tree, domain = lease.tree, lease.audiences[-1].domain
        tokens = lease.tokens[:num_tokens]
        same = self._find(tree, domain, tokens, terms)
        num_blocks = len(tokens) // tree.block_size
        if num_blocks > lease.num_published:
            raise InvalidInputError(
                f"{num_blocks} blocks are to be approved, but {lease.num_published} are "
                "committed"
            )
        end = cut_at(tree, lease.node, num_blocks)
        if (terms.pinned and same is None) or self._quotas.num_reserved:
            try:
                self.pins.check_room(end, num_kept, is_pinned=terms.pinned)
            except CapacityError:
                tree.merge(end)
                raise
        if same is not None:
            mark_path(tree, end, same.mark)
            return same.approval
        held = self._make(tree, domain, tokens, terms)
        mark_path(tree, end, held.mark)
        if terms.pinned:
            self.pins.hold(end)
            held.pin = end
        return held.approval

    def _make(
        self,
        tree: PrefixTree,
        domain: Domain,
        tokens: TokenIds,
        terms: ApprovalTerms,
    ) -> HeldApproval:
        now = self._clock()
        whole = tokens[: len(tokens) // tree.block_size * tree.block_size].copy()
        whole.flags.writeable = False
        expires_at = None if terms.ttl_s is None else now + terms.ttl_s
        approval = Approval(
            approval_id=ApprovalId(f"approval-{secrets.token_hex(12)}"),
            terms=terms,
            domain=domain,
            fingerprint=self._trees.fingerprint_of(tree),
            tokens=whole,
            created_at=now,
            expires_at=expires_at,
        )
        held = HeldApproval(
            approval, tree, Mark(math.inf if expires_at is None else expires_at)
        )
        self._num_made += 1
        self._by_id[approval.approval_id] = held
        self._by_content[tree, domain, whole.tobytes()] = held
        self._by_label[tree, domain, terms.label] = held
        if expires_at is not None:
            heapq.heappush(self._ends, (expires_at, self._num_made, held))
        return held

    # -- pins ----------------------------------------------------------------------

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks that no eviction takes, for an approval's sake or an operator's."""
        return self.pins.num_blocks

    def unpin(self, gone: Collection[HeldApproval]) -> None:
        """Take the pins of approvals that are about to end."""
        self.pins.let_go([held.pin for held in gone if held.pin is not None])
        for held in gone:
            held.pin = None

    # -- the end -------------------------------------------------------------------

    def expire_due(self) -> None:
        """End what has expired. O(1) where nothing has.

        The walk compares the time as well, so nothing depends on when this is called.
        """
        if not self._ends:
            return
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            expires_at, _, held = heapq.heappop(self._ends)
            if not held.mark.is_withdrawn:
                self.end([held], LossCause.LAPSED, at=expires_at)
                self.pins.end_orphans()

    def end(
        self,
        gone: Collection[HeldApproval],
        cause: LossCause,
        at: float | None = None,
        selector: str | None = None,
    ) -> KilledBlocks:
        """End approvals; return the blocks that nobody can end a match in any more.

        What died before, and is counted there, is left out. O(tokens of each).
        """
        at = self._clock() if at is None else at
        self.unpin(gone)
        num_blocks = num_leased = 0
        for held in gone:
            closed = self._end_one(held, cause, at, selector)
            num_blocks += closed.num_blocks
            num_leased += closed.num_leased
        return KilledBlocks(num_blocks=num_blocks, num_leased=num_leased)

    def _end_one(
        self, held: HeldApproval, cause: LossCause, at: float, selector: str | None
    ) -> KilledBlocks:
        tree, approval = held.tree, held.approval
        held.mark.is_withdrawn = True
        del self._by_id[approval.approval_id]
        del self._by_content[tree, approval.domain, approval.tokens.tobytes()]
        del self._by_label[tree, approval.domain, approval.label]
        path = held.path()
        for node in path:
            node.marks -= {held.mark}
        tree.version += 1
        closed = [n for n in path if not n.marks and not tree.audiences.is_doomed(n)]
        lost = count_blocks(closed)
        if closed:
            loss = Tombstone(
                at=at,
                cause=cause,
                policy=None,
                num_blocks=lost.num_blocks,
                selector=selector,
            )
            hang_tombstone(tree, closed[0], loss)
            tree.free_unmarked(closed[-1])
        for node in reversed(path):
            tree.merge(node)
        return lost

    # -- checks --------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless marks, pins and approvals agree. O(tokens)."""
        held = set(self._by_id.values())
        if held != set(self._by_content.values()) or held != set(self._by_label.values()):
            raise InvariantError("the indices of approvals disagree")
        for each in held:
            path = each.path()
            if path and path != path_to(path[-1]):
                raise InvariantError("an approval's marks have a gap")
            covered = sum(node.num_tokens for node in path)
            is_whole = covered == len(each.approval.tokens)
            if each.pin is not None and (not is_whole or path[-1] is not each.pin):
                raise InvariantError("a pinned approval is not wholly there")
            if covered > len(each.approval.tokens):
                raise InvariantError("more is marked than was approved")
            if each.mark.is_withdrawn or (each.pin is not None) != each.approval.pinned:
                raise InvariantError("an approval that ended is kept, or a pin was lost")
        self.pins.check_invariants()
