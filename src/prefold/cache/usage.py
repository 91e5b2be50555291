"""Usage: what an eviction policy gets to know of how requests use what is cached.

::

    acquire    what was waiting for a next use has had it; what had been evicted is missed
    release    the path becomes cohorts: runs of blocks that were used in one way
"""

from __future__ import annotations

from collections.abc import Callable

from prefold.blocks.table import TokenIds
from prefold.cache.lease import Lease
from prefold.cache.survey import Survey
from prefold.cache.use_start import Recorded, Revived, UseStart
from prefold.eviction.queue import EvictionQueue
from prefold.tree.account import Account
from prefold.tree.cohort import Cohort, Request, Use
from prefold.tree.loss import LossCause
from prefold.tree.lost import LostRun, asked_again
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.prefix_tree import PrefixTree

#: A request extends another one if it begins with all of that but a block and one part in
#: so many: the end of a prompt, such as an empty last message, is often replaced.
REPLACED_SHARE = 16


class Usage:
    """Tells the policies, if they learn. Owned by the cache."""

    __slots__ = ("_block_size", "_clock", "_queue")

    def __init__(
        self, queue: EvictionQueue, block_size: int, clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._block_size = block_size
        self._clock = clock

    def begin(self, node: Node, found: Survey, tokens: TokenIds) -> UseStart | None:
        """Note that a request is about to use everything down to ``node``. O(nodes).

        Called before the path is pinned, while it still says when it was used last.
        """
        if not self._queue.learns:
            return None
        now, lost = found.at, self._lost(found, tokens)
        num_known = found.num_matched_tokens + self._block_size * sum(n for _, n in lost)
        last = lost[-1][0].cohort.use if lost else node.use
        is_fork, extended = False, None
        if last is not None and num_known:
            slack = self._block_size + last.num_positions // REPLACED_SHARE
            is_fork = last.num_positions - num_known > slack
            extended = None if is_fork else last
        revived = self._revived(found, lost, is_fork=is_fork)
        for at in path_to(node):
            at.gap_s = now - at.last_used_at
            at.num_forks += is_fork
            self._reuse(at, now)
        for run, num_blocks in lost:
            policy = self._queue.policy_of(run.cohort.account)
            policy.note_lost_reuse(run.cohort, num_blocks, now)
        return UseStart(
            turn=0 if extended is None else extended.turn + 1,
            is_fork=is_fork,
            gap_s=None if extended is None else now - extended.at,
            num_prompt_positions=len(tokens),
            num_known_positions=num_known,
            revived=revived,
        )

    def _lost(self, found: Survey, tokens: TokenIds) -> list[tuple[LostRun, int]]:
        """Return which evicted runs are asked for again, and how many blocks of each."""
        lost = found.lost
        if lost is None or lost.cause is not LossCause.EVICTED:
            return []
        rest = tokens[found.num_matched_tokens : -1]
        return asked_again(lost.lost, rest, self._block_size)

    def _revived(
        self, found: Survey, lost: list[tuple[LostRun, int]], *, is_fork: bool
    ) -> tuple[Revived, ...]:
        revived = []
        begin = found.num_matched_tokens
        for run, num_blocks in lost:
            end = begin + num_blocks * self._block_size
            num_forks = run.num_forks + is_fork
            if num_forks:
                gap = found.at - run.cohort.use.at
                revived.append(
                    Revived(begin=begin, end=end, num_forks=num_forks, gap_s=gap)
                )
            begin = end
        return tuple(revived)

    def adopt(self, node: Node, below: Node) -> None:
        """Note that a request goes on with what others published down to ``node``."""
        now, at = self._clock(), node
        while at is not below and at.parent is not None:
            self._reuse(at, now)
            at = at.parent

    def _reuse(self, node: Node, now: float) -> None:
        if node.cohort is not None:
            policy = self._queue.policy_of(node.cohort.account)
            policy.note_reuse(node.cohort, node.num_blocks, now)
            node.cohort = None

    def end(self, lease: Lease, computed: int, tail: Node | None) -> None:
        """Note that a request is over, while its lease still holds its path. O(nodes).

        ``tail`` is the partial leaf that it leaves, if it does.
        """
        node, start = lease.node, lease.start
        if start is None:
            return
        request = _request(start, computed, lease.recorded)
        use = Use(self._clock(), start.turn, computed)
        for each in start.revived:
            _revive(lease.tree, node, each)
        path = [at for at in path_to(node) if not at.readers.is_throwaway]
        cohort: Cohort | None = None
        by_account: dict[Account, list[Cohort]] = {}
        for at in path if tail is None else [*path, tail]:
            if at.cohort is not None:
                # Somebody else, who ran meanwhile, has used it and was over before.
                at.cohort.leave(at.num_blocks)
            at.use = use
            account = at.readers.account
            kind = self._queue.policy_of(account).kind_of(request, at.num_forks, at.gap_s)
            if cohort is None or (cohort.kind, cohort.account) != (kind, account):
                cohort = Cohort(use, account, kind)
                by_account.setdefault(account, []).append(cohort)
            cohort.join(at.num_blocks)
            at.cohort = cohort
        for account, cohorts in by_account.items():
            self._queue.policy_of(account).note_uses(cohorts, use.at)


def _revive(tree: PrefixTree, node: Node, revived: Revived) -> None:
    """Let blocks that were lost and computed again have the forks that they had.

    Cuts them off from what else the request has computed, which has none.
    """
    for at in reversed(path_to(node)):
        if at.end <= revived.begin:
            return
        # What was used by others already has its own history.
        if at.use is None and at.start < revived.end and not at.is_partial:
            its = at
            if its.end > revived.end:
                its = tree.split(its, (revived.end - its.start) // tree.block_size)
            if its.start < revived.begin:
                tree.split(its, (revived.begin - its.start) // tree.block_size)
            its.num_forks, its.gap_s = revived.num_forks, revived.gap_s


def _request(start: UseStart, computed: int, recorded: Recorded | None) -> Request:
    num_new = start.num_prompt_positions - start.num_known_positions
    num_reply = max(computed - start.num_prompt_positions, 0)
    if recorded is not None:
        num_known = start.num_known_positions * recorded.tokens_per_position
        num_new = recorded.num_prompt_tokens - num_known
        num_reply = recorded.num_reply_tokens
    return Request(
        turn=start.turn,
        is_fork=start.is_fork,
        num_new_tokens=max(num_new, 0),
        num_reply_tokens=num_reply,
        gap_s=start.gap_s,
    )
