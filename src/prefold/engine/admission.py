"""Admission: whether a request can ever run, whether it waits, and its first blocks."""

from __future__ import annotations

from collections.abc import Mapping

from prefold.blocks.table import TokenIds, num_blocks_for
from prefold.cache import ApprovalTerms, Lease, Lookup, MissKind, PrefixCache
from prefold.engine.config import SchedulerConfig
from prefold.engine.counters import EngineCounters
from prefold.engine.sequence import Sequence
from prefold.engine.sidecar import Sidecar
from prefold.engine.waiting import STALLED_STEPS, find_wait
from prefold.errors import (
    CapacityError,
    InvalidInputError,
    OutOfBlocksError,
    QueueFullError,
    RequestError,
)
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint


def check_capacity(
    cache: PrefixCache, domain: Domain, num_prompt_tokens: int, max_tokens: int
) -> None:
    """Refuse what could never be computed, however long it waited.

    Raises:
        RequestError: With what it needs, what there is, and what to change.
    """
    size = cache.block_size
    # One more than it can come to hold: the last token of a reply has no KV.
    num_needed = num_prompt_tokens + max_tokens + 1
    cache.expire_due()
    num_blocks = cache.room.capacity(domain, cache.approved.num_pinned_blocks)
    if num_blocks_for(num_needed, size) > num_blocks:
        # What died counts until it is swept.
        cache.room.sweep()
        num_blocks = cache.room.capacity(domain, cache.approved.num_pinned_blocks)
    if num_blocks_for(num_needed, size) > num_blocks:
        num_fixed = cache.num_blocks - num_blocks
        fixed = f" beside {num_fixed} that are pinned or reserved" if num_fixed else ""
        raise RequestError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}, "
            f"but the cache memory holds {num_blocks * size} tokens ({num_blocks} blocks "
            f"of {size}{fixed}), one of them spare; shorten the prompt, lower max_tokens, "
            "or raise cache_memory (or cache_blocks)"
        )


def check_approval(
    cache: PrefixCache,
    fingerprint: Fingerprint,
    domain: Domain,
    token_ids: TokenIds,
    terms: ApprovalTerms,
) -> None:
    """Refuse a prompt that could not be approved once it is computed.

    Raises:
        RequestError: Less than a block, or in conflict with an approval that holds.
    """
    try:
        cache.approved.check(fingerprint, domain, token_ids, terms)
    except InvalidInputError as error:
        raise RequestError(str(error)) from error


def check_queue(num_queued: int, num_new: int, config: SchedulerConfig) -> None:
    """Refuse more requests than may wait.

    Raises:
        QueueFullError: With the limit.
    """
    if num_queued + num_new > config.max_queued:
        raise QueueFullError(
            # Not how many are waiting: that would tell one tenant about the others.
            f"no more than {config.max_queued} requests may wait (max_queued), and there "
            f"is no room for {num_new} more now; try again later"
        )


def check_running(num_running: int, num_forks: int, config: SchedulerConfig) -> None:
    """Refuse forks that would be more than may run.

    Raises:
        CapacityError: With the limit.
    """
    if num_running + num_forks > config.max_running:
        raise CapacityError(
            f"{num_forks} forks and {num_running} running sequences are more than "
            f"{config.max_running} (max_running); try again when others have ended"
        )


def no_room_for_forks(num_forks: int, error: OutOfBlocksError) -> CapacityError:
    """Return what to raise where the pool has no blocks for forks."""
    return CapacityError(
        f"{num_forks} forks need {error.num_needed} blocks of cache memory, of which "
        f"{error.num_available} are free; try again when other requests have ended"
    )


class Admission:
    """Gives sequences their lease and first blocks. Owned by the scheduler.

    Args:
        owners: The running sequences by lease; kept up to date by the scheduler.
    """

    __slots__ = ("_cache", "_counters", "_owners", "_sidecar")

    def __init__(
        self,
        cache: PrefixCache,
        owners: Mapping[Lease, Sequence],
        counters: EngineCounters,
        sidecar: Sidecar,
    ) -> None:
        self._cache = cache
        self._sidecar = sidecar
        self._owners = owners
        self._counters = counters

    def must_wait(self, sequence: Sequence, step: int) -> bool:
        """Decide anew whether it leaves its prefix to a running sequence for now."""
        self._recall(sequence)
        wait = find_wait(
            self._lookup(sequence),
            sequence.num_tokens,
            self._cache.block_size,
            sequence.wait,
        )
        if wait is not None and not self._is_worth_it(sequence, wait.owner, step):
            wait = None
        if wait is not None and sequence.wait is None:
            self._counters.num_waits += 1
        sequence.wait = wait
        return wait is not None

    def try_admit(
        self, sequence: Sequence, max_tokens: int, *, num_spare: int, num_held: int = 0
    ) -> int | None:
        """Acquire and reserve; return how many tokens it can advance by, or None.

        On success the sequence has its lease, and is still to be taken from the queue.

        Args:
            sequence: A queued or preempted one; unchanged if there is no room.
            max_tokens: Tokens it may advance by at most.
            num_spare: Blocks that must be left over.
            num_held: Tokens that it must have blocks for, at least.
        """
        cache, domain, room = self._cache, sequence.options.domain, self._cache.room
        self._recall(sequence)
        lookup = self._lookup(sequence)
        num_missing = sequence.num_tokens - lookup.num_hit_tokens
        num_tokens = min(max_tokens, num_missing)
        end = max(lookup.num_hit_tokens + num_tokens, num_held)
        num_blocks = num_blocks_for(end, cache.block_size)
        num_matched = lookup.num_matched_tokens // cache.block_size
        # Refuses what the exact check below would refuse, without touching the tree, where
        # each attempt would count as a use.
        num_available = room.num_available(domain) - room.num_idle_on(lookup)
        if num_available - (num_blocks - num_matched) < num_spare:
            return None
        tokens = sequence.tokens
        lease = cache.acquire(
            sequence.fingerprint,
            domain,
            tokens,
            access=sequence.access,
            retention=sequence.options.retention,
            limit=sequence.hit_limit,
        )
        if not self._try_reserve(lease, end, num_spare):
            # The pending copy was not carried out, so only the matched blocks count.
            cache.release(lease, tokens, lease.num_matched_tokens)
            return None
        self._start(sequence, lease)
        return num_tokens

    def _start(self, sequence: Sequence, lease: Lease) -> None:
        sequence.lease = lease
        sequence.num_computed = lease.num_matched_tokens
        sequence.is_started = False
        sequence.lookup = None
        sequence.lookup_version = None
        sequence.wait = None
        if sequence.miss is None:
            sequence.miss = lease.miss
            self._count_regret(sequence, lease)
        self._counters.num_admissions += 1
        if sequence.options.joint is not None:
            sequence.options.joint.has_begun = True

    def _count_regret(self, sequence: Sequence, lease: Lease) -> None:
        """Count what eviction costs now: that computes again what had been cached."""
        if lease.miss.kind is not MissKind.EVICTED:
            return
        start = lease.num_hit_tokens
        num_lost = lease.miss.num_lost_blocks * self._cache.block_size
        end = min(lease.num_matched_tokens + num_lost, sequence.num_tokens)
        if end > start:
            self._counters.num_regretted_tokens += end - start
            spent_ms = self._cache.cost.saved_ms(start, end)
            self._counters.regretted_s += (spent_ms or 0.0) / 1000

    def _try_reserve(self, lease: Lease, end: int, num_spare: int) -> bool:
        cache = self._cache
        num_lacking = num_blocks_for(end, cache.block_size) - len(lease.block_ids)
        # Asked before reserving, which would evict for nothing. With nothing to spare,
        # reserving decides, since it can also drop the pending copy.
        domain = lease.audiences[-1].domain
        available = cache.room.num_available(domain)
        if num_spare > 0 and available - num_lacking < num_spare:
            return False
        try:
            cache.reserve(lease, end)
        except OutOfBlocksError:
            return False
        return True

    def _lookup(self, sequence: Sequence) -> Lookup:
        """Return what its tokens would hit; looked up again only if that can differ."""
        version = (self._cache.version(sequence.fingerprint), sequence.hit_limit)
        lookup = sequence.lookup
        if lookup is None or sequence.lookup_version != version:
            lookup = self._cache.lookup(
                sequence.fingerprint,
                sequence.options.domain,
                sequence.tokens,
                access=sequence.access,
                limit=sequence.hit_limit,
            )
            sequence.lookup = lookup
            sequence.lookup_version = version
            self._cache.room.expect(lookup)
        return lookup

    def _recall(self, sequence: Sequence) -> None:
        """Take over the log-probabilities that are kept with what it would hit."""
        known = sequence.prompt_logprobs
        if known is None or known.is_complete:
            return
        found = self._cache.find_blocks(
            sequence.fingerprint,
            sequence.options.domain,
            sequence.tokens,
            access=sequence.access,
        )
        self._sidecar.recall(known, found)

    def _is_worth_it(self, sequence: Sequence, owner: Lease, step: int) -> bool:
        """Say whether waiting for ``owner`` will give the sequence what it needs."""
        running = self._owners.get(owner)
        if running is None or step - running.last_step > STALLED_STEPS:
            return False
        # Who does not compute log-probabilities leaves none behind.
        return sequence.hit_limit is None or running.prompt_logprobs is not None
