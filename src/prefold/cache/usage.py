"""Usage: what an eviction policy gets to know of how requests use what is cached.

::

    acquire    what was waiting for a next use has had it; what had been evicted is missed
    release    the path becomes cohorts: runs of blocks that were used in one way
"""

from __future__ import annotations

from collections.abc import Callable

from prefold.blocks.table import TokenIds
from prefold.cache.survey import Survey
from prefold.cache.use_start import Recorded, UseStart
from prefold.eviction.policy import EvictionPolicy
from prefold.tree.cohort import Cohort, Use
from prefold.tree.dead import all_children
from prefold.tree.lost import asked_again
from prefold.tree.node import LossCause, Node
from prefold.tree.path import path_to

#: A request extends another one if it begins with all of that but a block and one part in
#: so many: the end of a prompt, such as an empty last message, is often replaced.
REPLACED_SHARE = 16


class Usage:
    """Tells the policy. Owned by the cache."""

    __slots__ = ("_block_size", "_clock", "_policy")

    def __init__(
        self, policy: EvictionPolicy, block_size: int, clock: Callable[[], float]
    ) -> None:
        self._policy = policy
        self._block_size = block_size
        self._clock = clock

    def begin(self, node: Node, found: Survey, tokens: TokenIds) -> UseStart:
        """Note that a request is about to use everything down to ``node``. O(nodes).

        Called before the path is pinned, while it still says when it was used last.
        """
        now = found.at
        last, num_lost = self._note_lost(found, tokens)
        last = node.use if last is None else last
        num_known = found.num_matched_tokens + num_lost
        is_fork, extended = False, None
        if last is not None and num_known:
            slack = self._block_size + last.num_positions // REPLACED_SHARE
            is_fork = last.num_positions - num_known > slack
            extended = None if is_fork else last
        for at in path_to(node):
            at.gap_s = now - at.last_used_at
            at.num_forks += is_fork
            self._reuse(at, now)
        return UseStart(
            turn=0 if extended is None else extended.turn + 1,
            is_fork=is_fork,
            gap_s=None if extended is None else now - extended.at,
            num_prompt_positions=len(tokens),
            num_known_positions=num_known,
        )

    def _note_lost(self, found: Survey, tokens: TokenIds) -> tuple[Use | None, int]:
        """Note what is asked for again that was evicted.

        Returns how the last block of it was used last, and how many positions it has.
        """
        lost = found.lost
        if lost is None or lost.cause is not LossCause.EVICTED:
            return None, 0
        rest = tokens[found.num_matched_tokens : -1]
        use, num_blocks = None, 0
        for run, num_equal in asked_again(lost.lost, rest, self._block_size):
            self._policy.note_lost_reuse(run.cohort, num_equal, found.at)
            use = run.cohort.use
            num_blocks += num_equal
        return use, num_blocks * self._block_size

    def adopt(self, node: Node, below: Node) -> None:
        """Note that a request goes on with what others published down to ``node``."""
        now, at = self._clock(), node
        while at is not below and at.parent is not None:
            self._reuse(at, now)
            at = at.parent

    def _reuse(self, node: Node, now: float) -> None:
        if node.cohort is not None:
            self._policy.note_reuse(node.cohort, node.num_blocks, now)
            node.cohort = None

    def end(
        self, node: Node, start: UseStart, computed: int, recorded: Recorded | None
    ) -> None:
        """Note that a request that used everything down to ``node`` is over. O(nodes)."""
        use = _use(start, computed, self._clock(), recorded)
        path = [at for at in path_to(node) if not at.readers.is_throwaway]
        tails = [it for it in all_children(node) if it.is_partial and it.use is None]
        cohort: Cohort | None = None
        cohorts: list[Cohort] = []
        for at in [*path, *tails]:
            if at.cohort is not None:
                # Somebody else, who ran meanwhile, has used it and was over before.
                at.cohort.leave(at.num_blocks)
                at.cohort = None
            at.use = use
            kind = self._policy.kind_of(use, at.num_forks, at.gap_s)
            if kind is None:
                continue
            if cohort is None or cohort.kind != kind:
                cohort = Cohort(use, kind)
                cohorts.append(cohort)
            cohort.join(at.num_blocks)
            at.cohort = cohort
        if cohorts:
            self._policy.note_uses(cohorts, use.at)


def _use(start: UseStart, computed: int, now: float, recorded: Recorded | None) -> Use:
    num_new = start.num_prompt_positions - start.num_known_positions
    num_reply = max(computed - start.num_prompt_positions, 0)
    if recorded is not None:
        num_known = start.num_known_positions * recorded.tokens_per_position
        num_new = recorded.num_prompt_tokens - num_known
        num_reply = recorded.num_reply_tokens
    return Use(
        at=now,
        turn=start.turn,
        is_fork=start.is_fork,
        num_positions=computed,
        num_new_tokens=max(num_new, 0),
        num_reply_tokens=num_reply,
        gap_s=start.gap_s,
    )
