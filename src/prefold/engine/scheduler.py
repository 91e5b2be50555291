"""Scheduler: which sequence advances by how many tokens in each step.

A step is planned in this order, and every part takes what the ones before left of the
token budget::

    running sequences    their next token each; then prompts in chunks, oldest first
    preempted ones       back again, oldest first, once their blocks would fit
    new requests         tenants in turn, above a watermark of free blocks

Why every request ends: it was refused at once if it cannot fit alone; the oldest of all
sequences admitted is never preempted; and once a preempted one has waited for
``PATIENCE_STEPS`` steps, nothing younger is admitted before it, and if it is the oldest
of all it takes the blocks it needs.

Pure control: numbers and the cache, no tensors, no clock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from itertools import chain

from prefold.blocks.table import BlockCopy
from prefold.cache import Lease, PrefixCache
from prefold.engine.admission import Admission
from prefold.engine.config import SchedulerConfig
from prefold.engine.counters import EngineCounters
from prefold.engine.request_queue import RequestQueue
from prefold.engine.sequence import Sequence, SequenceState
from prefold.engine.sidecar import Sidecar
from prefold.engine.step_draft import Advance, ScheduledStep, StepDraft
from prefold.errors import InvariantError, OutOfBlocksError

#: Steps that a preempted sequence waits before it holds up everything younger.
PATIENCE_STEPS = 32

#: New requests looked at in one step, so that a step's cost is bounded.
MAX_CANDIDATES = 16


class Scheduler:
    """Running and waiting sequences. Owned by the engine; one thread.

    Invariants:
        - running sequences are sorted by arrival and hold exactly the cache's leases
        - published <= computed <= known tokens, and the blocks cover what is computed
        - see ``RequestQueue`` for the waiting ones
    """

    __slots__ = (
        "_admission",
        "_blocked",
        "_cache",
        "_config",
        "_counters",
        "_num_plans",
        "_owners",
        "admits_new",
        "queue",
        "running",
    )

    def __init__(
        self,
        cache: PrefixCache,
        config: SchedulerConfig,
        counters: EngineCounters,
        sidecar: Sidecar,
    ) -> None:
        self._cache = cache
        self._config = config
        self._counters = counters
        self._num_plans = 0
        self._owners: dict[Lease, Sequence] = {}
        self._admission = Admission(cache, self._owners, counters, sidecar)
        # The new request that there was no room for: it is the next one, whoever else
        # has the turn, or a stream of smaller ones could pass it for ever.
        self._blocked: Sequence | None = None
        #: Whether sequences that never ran may begin to.
        self.admits_new = True
        #: Sequences that hold a lease, by arrival.
        self.running: list[Sequence] = []
        self.queue = RequestQueue()

    # -- a sequence's life ---------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.queue.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """Let a sequence go, whatever it is doing. What it has computed is published."""
        if sequence.state is SequenceState.RUNNING:
            self._release(sequence)
        else:
            self.queue.remove(sequence)
        if sequence is self._blocked:
            self._blocked = None
        sequence.state = SequenceState.ENDED
        sequence.wait = None

    def branch(
        self,
        sequence: Sequence,
        twins: list[Sequence],
        copy_blocks: Callable[[list[BlockCopy]], None],
    ) -> None:
        """Let ``twins`` go on where ``sequence`` is, sharing what it has computed.

        They run at once if it is running, and are queued otherwise: as one that was
        admitted before if it was, for they have its tokens.

        Raises:
            OutOfBlocksError: There is no room for the copies of the last, partly filled
                block. No twin was taken in.
        """
        lease = sequence.lease
        if lease is None or lease.copy_source is not None:
            for twin in twins:
                if sequence.state is not SequenceState.QUEUED:
                    twin.state = SequenceState.PREEMPTED
                    twin.queued_step = self._num_plans
                self.queue.add(twin)
            return
        forks = self._cache.fork(lease, sequence.tokens, sequence.num_computed, len(twins))
        for twin, fork in zip(twins, forks, strict=True):
            twin.state = SequenceState.RUNNING
            twin.lease = fork.lease
            twin.miss = sequence.miss
            # The partly filled block counts only once its copy is there.
            twin.num_computed = fork.lease.num_published_tokens
            twin.last_step = self._num_plans
            twin.is_started = True
            self._enter(twin)
        done = False
        try:
            copy_blocks([fork.copy for fork in forks if fork.copy is not None])
            done = True
        finally:
            if not done:
                for twin in twins:
                    self.end(twin)
        for twin in twins:
            twin.num_computed = sequence.num_computed
            twin.num_cached = min(sequence.num_computed, sequence.num_prompt_tokens)

    # -- a step --------------------------------------------------------------------

    def plan(self) -> ScheduledStep:
        """Decide on the next step, admitting and preempting as needed; may be empty.

        What was planned is executed before any other call, or given up, which takes
        no call: nothing has happened to a sequence before ``advance``.
        """
        self._num_plans += 1
        draft = StepDraft(
            self._num_plans, self._config.max_step_tokens, self._cache.block_size
        )
        self._plan_running(draft)
        self._readmit(draft)
        self._admit(draft)
        return draft.finish()

    def advance(self, step: ScheduledStep, advance: Advance) -> None:
        """Note that one sequence's share of a step was carried out."""
        sequence = advance.sequence
        lease = sequence.held_lease
        if advance.copies:
            self._cache.copied(lease)
        if not sequence.is_started:
            sequence.is_started = True
            self._count_hits(sequence, advance.start)
        sequence.num_computed = advance.end
        sequence.last_step = step.number
        self._counters.num_computed_tokens += advance.end - advance.start
        if advance.end >= lease.num_published_tokens + self._cache.block_size:
            self._cache.commit(lease, sequence.tokens, advance.end)

    # -- running sequences ---------------------------------------------------------

    def _plan_running(self, draft: StepDraft) -> None:
        in_prompt: list[Sequence] = []
        for sequence in tuple(self.running):
            if sequence.state is not SequenceState.RUNNING:
                continue
            if sequence.num_tokens - sequence.num_ready > 1:
                in_prompt.append(sequence)
            else:
                self._extend(draft, sequence)
        for sequence in in_prompt:
            if draft.num_free_tokens == 0:
                return
            if sequence.state is SequenceState.RUNNING:
                if sequence.hit_limit is None:
                    self._adopt(sequence)
                self._extend(draft, sequence)

    def _adopt(self, sequence: Sequence) -> None:
        """Skip what other sequences have published meanwhile."""
        before = sequence.num_computed
        sequence.num_computed = self._cache.adopt(
            sequence.held_lease, sequence.tokens, before
        )
        if sequence.is_started:
            self._count_hits(sequence, sequence.num_computed - before)

    def _extend(self, draft: StepDraft, sequence: Sequence) -> None:
        """Plan the next tokens of a running sequence, preempting if there is no room."""
        start = sequence.num_ready
        num_tokens = min(sequence.num_tokens - start, draft.num_free_tokens)
        if num_tokens > 0 and self._make_room(draft, sequence, start + num_tokens):
            draft.add(sequence, num_tokens)

    def _make_room(self, draft: StepDraft, sequence: Sequence, end: int) -> bool:
        """Reserve; say whether the sequence is still running afterwards."""
        while True:
            try:
                self._cache.reserve(sequence.held_lease, end)
            except OutOfBlocksError:
                if self._preempt_one(draft) is sequence:
                    return False
            else:
                return True

    # -- preemption ----------------------------------------------------------------

    def _preempt_one(self, draft: StepDraft) -> Sequence:
        """Preempt the youngest of the lowest priority, never the oldest of all."""
        oldest = self._oldest()
        victim: Sequence | None = None
        for sequence in self.running:
            if sequence is not oldest and (
                victim is None or sequence.priority <= victim.priority
            ):
                victim = sequence
        if victim is None:
            raise InvariantError("a sequence does not fit although it is alone")
        draft.discard(victim)
        self.preempt(victim)
        return victim

    def preempt(self, victim: Sequence) -> None:
        """Let a running sequence give its blocks back, and wait to go on."""
        self._release(victim)
        victim.state = SequenceState.PREEMPTED
        victim.queued_step = self._num_plans
        if victim.is_started:
            victim.counts_hits = False
        self.queue.add(victim)
        self._counters.num_preemptions += 1

    def _oldest(self) -> Sequence | None:
        """Return the one that arrived first of all that were ever admitted."""
        heads = [*self.running[:1], *self.queue.preempted[:1]]
        if len(heads) == 2 and heads[1].arrival < heads[0].arrival:
            return heads[1]
        return heads[0] if heads else None

    def _readmit(self, draft: StepDraft) -> None:
        """Let preempted sequences come back, until one finds no room."""
        for sequence in tuple(self.queue.preempted):
            # What was preempted in this very step gave way to somebody.
            if sequence.queued_step == draft.number:
                continue
            if self._is_out_of_patience(sequence, draft.number):
                is_back = self._readmit_at_last(draft, sequence)
            elif self._is_full(draft):
                return
            elif self._admission.must_wait(sequence, draft.number):
                continue
            else:
                is_back = self._try_readmit(draft, sequence)
            if not is_back:
                return

    def _readmit_at_last(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Readmit; the oldest of all may preempt others for a place or for blocks."""
        while self._is_full(draft) or not self._try_readmit(draft, sequence):
            if draft.num_free_tokens == 0 or sequence is not self._oldest():
                return False
            self._preempt_one(draft)
        return True

    def _try_readmit(self, draft: StepDraft, sequence: Sequence) -> bool:
        chunk = self._config.max_step_tokens
        num_held = min(sequence.num_tokens, sequence.num_restored + chunk)
        num_tokens = self._admission.try_admit(
            sequence, draft.num_free_tokens, num_spare=0, num_held=num_held
        )
        if num_tokens is None:
            return False
        self._start(draft, sequence, num_tokens)
        return True

    def _is_out_of_patience(self, sequence: Sequence, step: int) -> bool:
        return step - sequence.queued_step >= PATIENCE_STEPS

    # -- new requests --------------------------------------------------------------

    def _admit(self, draft: StepDraft) -> None:
        """Admit new requests, until one finds no room."""
        barrier = self._barrier(draft.number)
        for sequence in self._candidates():
            if self._is_full(draft):
                return
            is_held_up = barrier is not None and sequence.arrival > barrier
            if is_held_up or sequence.state is not SequenceState.QUEUED:
                continue
            if sequence is self._blocked:
                self._blocked = None
            if self._admission.must_wait(sequence, draft.number):
                continue
            num_tokens = self._admission.try_admit(
                sequence, draft.num_free_tokens, num_spare=len(self.running)
            )
            if num_tokens is None:
                self._blocked = sequence
                return
            self._start(draft, sequence, num_tokens)
            self.queue.end_turn(sequence.tenant)

    def _candidates(self) -> Iterable[Sequence]:
        """Return the new requests to look at, some perhaps twice."""
        if not self.admits_new:
            return [s for s in self.queue.sequences() if s.is_of_begun_answer]
        if self._blocked is None:
            return self.queue.candidates(MAX_CANDIDATES)
        return chain((self._blocked,), self.queue.candidates(MAX_CANDIDATES - 1))

    def _barrier(self, step: int) -> int | None:
        """Return the arrival after which nothing is admitted in this step, if any."""
        for sequence in self.queue.preempted:
            if self._is_out_of_patience(sequence, step):
                return sequence.arrival
        return None

    def _is_full(self, draft: StepDraft) -> bool:
        return draft.num_free_tokens == 0 or len(self.running) >= self._config.max_running

    def _start(self, draft: StepDraft, sequence: Sequence, num_tokens: int) -> None:
        self.queue.remove(sequence)
        sequence.state = SequenceState.RUNNING
        sequence.last_step = draft.number
        self._enter(sequence)
        draft.add(sequence, num_tokens)

    # -- bookkeeping ---------------------------------------------------------------

    def _enter(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=_arrival)
        self._owners[sequence.held_lease] = sequence

    def _release(self, sequence: Sequence) -> None:
        lease = sequence.held_lease
        self.running.remove(sequence)
        del self._owners[lease]
        self._cache.release(lease, sequence.tokens, sequence.num_computed)
        sequence.lease = None
        sequence.num_restored = max(sequence.num_restored, sequence.num_computed)
        sequence.num_computed = 0

    def _count_hits(self, sequence: Sequence, num_tokens: int) -> None:
        self._counters.num_hit_tokens += num_tokens
        if sequence.counts_hits:
            limit = sequence.num_prompt_tokens
            sequence.num_cached = min(sequence.num_cached + num_tokens, limit)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` unless sequences, leases and blocks agree. Slow."""
        self.queue.check_invariants()
        arrivals = [sequence.arrival for sequence in self.running]
        if arrivals != sorted(set(arrivals)):
            raise InvariantError("running sequences are not in order of arrival")
        owners = {sequence.held_lease: sequence for sequence in self.running}
        if owners != self._owners:
            raise InvariantError("leases and running sequences disagree")
        if len(owners) != self._cache.snapshot().num_leases:
            raise InvariantError("the cache has leases that no running sequence holds")
        for sequence in self.running:
            self._check_running(sequence)
        if self._blocked is not None and self._blocked.state is not SequenceState.QUEUED:
            raise InvariantError("the blocked request is not queued")
        self._cache.check_invariants()

    def _check_running(self, sequence: Sequence) -> None:
        lease = sequence.held_lease
        num_covered = len(lease.block_ids) * self._cache.block_size
        if lease.is_released or sequence.state is not SequenceState.RUNNING:
            raise InvariantError("a running sequence has no lease")
        if not (
            lease.num_published_tokens
            <= sequence.num_computed
            <= min(sequence.num_tokens, num_covered)
        ):
            raise InvariantError("published, computed and known tokens are out of order")


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
