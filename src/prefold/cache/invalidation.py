"""Invalidation: one call that makes what a selector covers unreachable, at once.

::

    pins of covered approvals -> the tree's epochs and subtrees -> their marks -> leases
                                                                            -> other pins

Requests admitted before finish on the blocks they hold and publish nothing that anybody
could find.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from prefold.cache.approved import ApprovedPrefixes
from prefold.cache.contents import ContentIds
from prefold.cache.frontier import Frontiers
from prefold.cache.lease import Lease
from prefold.cache.paths import LeasePaths
from prefold.cache.reach import reach_of
from prefold.cache.room import Room
from prefold.cache.selector import ByApproved, Receipt, Selector, selector_kind
from prefold.cache.trees import Trees
from prefold.tree.loss import LossCause


class Invalidation:
    """Carries selectors out. Owned by the cache."""

    __slots__ = (
        "_approved",
        "_clock",
        "_frontiers",
        "_num_done",
        "_paths",
        "_room",
        "_trees",
    )

    def __init__(
        self,
        trees: Trees,
        approved: ApprovedPrefixes,
        paths: LeasePaths,
        frontiers: Frontiers,
        room: Room,
        clock: Callable[[], float],
    ) -> None:
        self._trees = trees
        self._approved = approved
        self._paths = paths
        self._frontiers = frontiers
        self._room = room
        self._clock = clock
        self._num_done = 0

    def carry_out(
        self, selector: Selector, leases: Collection[Lease], contents: ContentIds
    ) -> Receipt:
        """Invalidate, and keep ``leases`` from publishing what is covered.

        Raises:
            InvalidInputError: A prefix is shorter than a block; nothing was changed.
        """
        approved = self._approved
        approved.expire_due()
        reach = reach_of(selector, self._trees, approved.held(), self._clock(), contents)
        self._num_done += 1
        gone = [held for held in approved.held() if reach.covers_approval(held)]
        # Pins first, so that the receipt counts only what requests hold; marks last, so
        # that what died with them is not counted again.
        approved.unpin(gone)
        lost = reach.kill()
        is_withdrawal = isinstance(selector, ByApproved)
        cause = LossCause.WITHDRAWN if is_withdrawal else LossCause.INVALIDATED
        lost.append(approved.end(gone, cause, selector=selector_kind(selector)))
        for lease in leases:
            if reach.covers_lease(lease):
                self._paths.throw_away(lease)
                lease.is_doomed = True
                self._frontiers.remove(lease)
        num_let_go = approved.pins.end_orphans()
        self._room.settle()
        return Receipt(
            num_blocks=sum(each.num_blocks for each in lost),
            num_leased_blocks=sum(each.num_leased for each in lost) - num_let_go,
            is_upper_bound=any(each.is_upper_bound for each in lost),
            num_approvals=len(gone),
            num_invalidations=self._num_done,
        )
