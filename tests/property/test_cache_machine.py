"""The prefix cache against a naive one, over random lives of sequences.

The naive cache says what must be found, whole block by whole block; a slot store says
what every lease must read at every position; both after every rule.

A rule draws one seed and rolls its own dice for three moves: drawing every token by
itself would take most of the time, and most rules drawn evenly would find nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from prefold.blocks.pool import BlockState
from prefold.cache import (
    NO_CACHE,
    READ_WRITE,
    Access,
    ByDomain,
    ByFingerprint,
    ByPrefix,
    Everything,
    Lookup,
    MissKind,
    MissReason,
    PrefixCache,
    Selector,
)
from prefold.errors import OutOfBlocksError
from prefold.identity.domain import Domain
from prefold.tree.walk import MIN_COPY_TOKENS
from support.clock import TickingClock
from support.fingerprints import make_fingerprint
from support.naive_cache import NaiveCache, Owner, Tokens
from support.running import Running, as_tokens
from support.slots import SlotStore, marks_of

DOMAINS = [Domain("a"), Domain("a/b"), Domain("b"), Domain("a", salt=b"s")]
ACCESSES = [
    *[READ_WRITE] * 6,
    NO_CACHE,
    Access(read=True, write=False),
    Access(read=False, write=True),
]
#: Reasons that may turn into one another, in a first block, as another tree changes.
ELSEWHERE = {MissKind.NEVER_SEEN, MissKind.DIVERGED, MissKind.OTHER_FINGERPRINT}
SEEDS = st.integers(0, 2**32 - 1)
NUM_MOVES = 3
#: A token no sequence has.
FOREIGN = 9
MAX_RUNNING = 6


class CacheMachine(RuleBasedStateMachine):
    """Rules and checks; a subclass says how many blocks there are."""

    shapes: tuple[tuple[int, int], ...] = ((8, 10),)

    @initialize(index=st.integers(0, 5))
    def make(self, index: int) -> None:
        block_size, num_blocks = self.shapes[index % len(self.shapes)]
        self.size = block_size
        self.cache = PrefixCache(
            num_blocks=num_blocks, block_size=block_size, clock=TickingClock()
        )
        self.fingerprints = [
            make_fingerprint(block_size=block_size, weights=bytes([w])) for w in range(2)
        ]
        self.slots = SlotStore(num_blocks, block_size)
        self.naive = NaiveCache(block_size)
        self.running: list[Running] = []
        self.past: list[tuple[Owner, Tokens]] = [((0, 0), (0,) * (3 * block_size))]
        self.num_evicted = 0
        self.answers: dict[tuple[Owner, Tokens], tuple[int, object]] = {}
        self.may_lose_tails = False
        self.num_rules = 0

    @rule(seed=SEEDS)
    def move(self, seed: int) -> None:
        self.num_rules += 1
        # Equal seeds, which are common, should not mean equal moves.
        dice = Random(1_000_003 * seed + self.num_rules)  # noqa: S311 -- a test's dice
        moves = {
            self.serve: 4,
            self.acquire: 5,
            self.compute: 10,
            self.carry_out_a_copy: 2,
            self.adopt: 3,
            self.fork: 1,
            self.release: 5,
            self.keys_and_tokens_find_the_same: 1,
            self.invalidate: 1,
        }
        for chosen in dice.choices(list(moves), list(moves.values()), k=NUM_MOVES):
            chosen(dice)
            self.check()

    def check(self) -> None:
        self.accounts_add_up()
        self.every_lease_reads_its_own_content()
        self.finds_exactly_what_is_published()
        self.equal_versions_mean_equal_answers()
        self.frontiers_are_the_running_sequences()

    # -- a sequence's life ---------------------------------------------------------

    def serve(self, dice: Random) -> None:
        """Run one sequence from beginning to end."""
        run = self._acquire(dice)
        for _ in range(dice.randint(1, 4)):
            self._compute(run, dice)
        self._release(run, run.computed)

    def acquire(self, dice: Random) -> None:
        self._acquire(dice)

    def _acquire(self, dice: Random) -> Running:
        if len(self.running) >= MAX_RUNNING:
            self.release(dice)
        owner = self._owner(dice)
        access = dice.choice(ACCESSES)
        tokens = self._prompt(dice)
        seen = self._lookup(owner, tokens, access)
        lease = self.cache.acquire(
            self.fingerprints[owner[0]],
            DOMAINS[owner[1]],
            as_tokens(tokens),
            access=access,
        )
        assert lease.num_matched_tokens == seen.num_matched_tokens
        assert lease.num_hit_tokens == seen.num_hit_tokens
        assert lease.miss == seen.miss
        assert len(lease.block_ids) * self.size == lease.num_matched_tokens
        self._check_hit(owner, tokens, access, seen)
        self.past.append((owner, tokens))
        run = Running(lease, owner, list(tokens), access, lease.num_matched_tokens)
        self.running.append(run)
        self._reserve(run, dice.randint(0, len(tokens)))
        return run

    def compute(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is not None:
            self._compute(run, dice)

    def _compute(self, run: Running, dice: Random) -> None:
        if dice.random() < 0.7:
            self._carry_out(run)
        end = run.computed + dice.randint(1, 20)
        if not self._reserve(run, end):
            return
        while len(run.tokens) < end:
            run.tokens.append(int(dice.random() < 0.2))
        begin = run.computed
        for block in run.lease.block_ids[begin // self.size : -(-end // self.size)]:
            state = self.cache._pool.state_of(int(block))
            assert state is BlockState.PRIVATE, "a shared block is written"
        self.slots.write(run.lease, begin, run.marks[begin:end])
        run.computed = end
        if dice.random() < 0.7:
            self._commit(run)

    def carry_out_a_copy(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is not None:
            self._carry_out(run)

    def adopt(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is None:
            return
        before = run.computed
        run.computed = self.cache.adopt(run.lease, run.array, before)
        self._published(run)
        if run.publishes and run.access.read:
            there = self.naive.expect(run.owner, run.tokens).matched
            assert run.computed == max(before, there)
        elif not run.access.read or run.is_doomed:
            assert run.computed == before
        assert before <= run.computed < max(len(run.tokens), before + 1)

    def fork(self, dice: Random) -> None:
        num_forks = dice.randint(1, 2)
        run = self._pick(dice)
        if run is None or run.lease.copy_source is not None:
            return
        if len(self.running) > MAX_RUNNING:
            return
        num_leases = self.cache.snapshot().num_leases
        try:
            forks = self.cache.fork(run.lease, run.array, run.computed, num_forks)
        except OutOfBlocksError:
            assert self.cache.snapshot().num_leases == num_leases
            forks = []
        self._published(run)
        for fork in forks:
            self.slots.clear(fork.lease.block_ids[fork.lease.num_published :])
        for fork in forks:
            assert (fork.copy is not None) == bool(run.computed % self.size)
            if fork.copy is not None:
                self.slots.copy(fork.copy)
            self.running.append(
                Running(
                    fork.lease,
                    run.owner,
                    list(run.tokens),
                    run.access,
                    run.computed,
                    is_doomed=run.is_doomed,
                )
            )

    def release(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is None:
            return
        computed = run.computed
        if dice.random() < 0.3:
            # The last step is not trusted.
            computed = max(run.lease.num_published_tokens, computed - 3)
        self._release(run, computed)

    # -- questions -----------------------------------------------------------------

    def keys_and_tokens_find_the_same(self, dice: Random) -> None:
        owner, tokens = self._owner(dice), self._prompt(dice)
        keys = self.cache.keys.of(
            self.fingerprints[owner[0]], DOMAINS[owner[1]], as_tokens(tokens)
        )
        assert len(keys) == len(tokens) // self.size
        for index, key in enumerate(keys):
            end = (index + 1) * self.size
            block = self.cache.keys.find(key)
            assert (block is not None) == self.naive.has(owner, tokens[:end])
            if block is not None:
                assert self.slots.marks[block, -1] == marks_of(owner, tokens)[end - 1]

    # -- invalidation --------------------------------------------------------------

    def invalidate(self, dice: Random) -> None:
        owner, tokens = self._owner(dice), self._prompt(dice)
        fingerprint, domain = self.fingerprints[owner[0]], DOMAINS[owner[1]]
        match dice.randrange(15):
            case 0:
                self._invalidate(Everything(), lambda _: True)
            case 1:
                self._invalidate(
                    ByFingerprint(fingerprint=fingerprint),
                    lambda other: other[0] == owner[0],
                )
            case 2:
                self._invalidate(
                    ByDomain(domain=domain, below=False), lambda other: other[1] == owner[1]
                )
            case _ if len(tokens) >= self.size:
                selector = ByPrefix(
                    fingerprint=fingerprint, domain=domain, tokens=as_tokens(tokens)
                )
                whole = tokens[: len(tokens) // self.size * self.size]
                self._invalidate(selector, lambda other: other == owner, whole)

    def _invalidate(
        self, selector: Selector, concerns: Callable[[Owner], bool], whole: Tokens = ()
    ) -> None:
        lost = [
            [
                tokens
                for owner, known in published.items()
                if concerns(owner)
                for tokens in known
                if tokens[: len(whole)] == whole
            ]
            for published in (self.naive.whole, self.naive.tails)
        ]
        receipt = self.cache.invalidate(selector)
        # A tail may have been superseded by a block that is dropped now.
        self.may_lose_tails = True
        assert receipt.num_blocks >= len(lost[0])
        assert 0 <= receipt.num_leased_blocks <= receipt.num_blocks
        if not receipt.is_upper_bound:
            # Tails may have been superseded, or pushed out by others.
            assert receipt.num_blocks <= len(lost[0]) + len(lost[1])
        for owner in list(self.naive.whole):
            if concerns(owner):
                self.naive.forget(owner, whole)
        for run in self.running:
            # Whoever may still turn out to begin with it counts as if it did.
            known = tuple(run.known[: len(whole)])
            if concerns(run.owner) and known == whole[: len(known)]:
                run.is_doomed = True

    # -- after every rule ----------------------------------------------------------

    def accounts_add_up(self) -> None:
        self.cache.check_invariants()

    def every_lease_reads_its_own_content(self) -> None:
        for run in self.running:
            read = self.slots.read(run.lease, run.computed)
            assert read.tolist() == run.marks[: run.computed].tolist()

    def finds_exactly_what_is_published(self) -> None:
        num_evicted = self.cache.snapshot().num_evicted_blocks - self.num_evicted
        self.num_evicted += num_evicted
        num_lost = 0
        for owner in list(self.naive.whole):
            for prefix in list(self.naive.longest(owner)):
                seen = self._lookup(owner, (*prefix, FOREIGN))
                lost = {
                    prefix[:end]
                    for end in range(
                        seen.num_matched_tokens + self.size, len(prefix) + 1, self.size
                    )
                } & self.naive.whole[owner]
                self.naive.whole[owner] -= lost
                num_lost += len(lost)
        assert num_lost <= num_evicted
        self.naive.note_crowds()
        for owner, tails in self.naive.tails.items():
            for tail in list(tails):
                if not self._finds_tail(owner, tail):
                    is_certain = self.naive.expect(owner, tail).is_certain
                    assert num_evicted or self.may_lose_tails or not is_certain
                    tails.discard(tail)
        self.may_lose_tails = False
        for run in self.running:
            held = run.lease.num_published_tokens
            if run.publishes and held:
                assert self.naive.has(run.owner, run.tokens[:held]), "evicted in use"

    def equal_versions_mean_equal_answers(self) -> None:
        for owner, tokens in self.past[-4:]:
            version = self.cache.version(self.fingerprints[owner[0]])
            seen = self._lookup(owner, tokens)
            frontier = seen.frontier
            answer = (
                seen.num_matched_tokens,
                seen.num_hit_tokens,
                # Whether another fingerprint has it is told at the time of asking.
                None if self._is_elsewhere(seen.miss) else seen.miss,
                frontier and (id(frontier.owner), frontier.num_common_tokens),
            )
            before = self.answers.get((owner, tokens))
            assert before is None or before[0] != version or before[1] == answer
            self.answers[owner, tokens] = (version, answer)

    def _is_elsewhere(self, miss: MissReason) -> bool:
        in_first = miss.at_token < self.cache.block_size
        return in_first and miss.kind in ELSEWHERE

    def frontiers_are_the_running_sequences(self) -> None:
        for owner, tokens in self.past[-3:]:
            seen = self._lookup(owner, tokens)
            expected = max(self._common_with_running(owner, tokens, seen), default=None)
            if expected is None:
                assert seen.frontier is None
            else:
                assert seen.frontier is not None
                assert seen.frontier.num_common_tokens == expected
                assert any(run.lease is seen.frontier.owner for run in self.running)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for run in list(self.running):
            self._release(run, run.computed)
            self.cache.check_invariants()
        counts = self.cache.counts
        assert (counts.private, counts.shared) == (0, 0)
        everything = self.cache.acquire(
            self.fingerprints[0], Domain("z"), as_tokens([FOREIGN])
        )
        self.cache.reserve(everything, self.cache.num_blocks * self.size)
        self.cache.release(everything, as_tokens([FOREIGN]), 0)
        self.cache.check_invariants()
        assert self.cache.counts.free == self.cache.num_blocks

    # -- helpers -------------------------------------------------------------------

    def _owner(self, dice: Random) -> Owner:
        return dice.choice([*[0] * 8, 1]), dice.choice([*[0] * 12, 1, 2, 3])

    def _prompt(self, dice: Random) -> Tokens:
        old = dice.choice(self.past[-8:])[1]
        known = [prefix for its in self.naive.whole.values() for prefix in its]
        if known and dice.random() < 0.6:
            old = dice.choice(sorted(known))
        cut = len(old) if dice.random() < 0.5 else dice.randint(0, len(old))
        more = [int(dice.random() < 0.3) for _ in range(dice.randrange(7))]
        pad = dice.choice([0, 0, 0, self.size, 2 * self.size - 1])
        return (*old[:cut], *more, *(1 for _ in range(pad))) or (0,)

    def _pick(self, dice: Random) -> Running | None:
        return dice.choice(self.running) if self.running else None

    def _lookup(self, owner: Owner, tokens: Tokens, access: Access = READ_WRITE) -> Lookup:
        return self.cache.lookup(
            self.fingerprints[owner[0]], DOMAINS[owner[1]], as_tokens(tokens), access=access
        )

    def _check_hit(
        self, owner: Owner, tokens: Tokens, access: Access, seen: Lookup
    ) -> None:
        if not access.read:
            assert seen.num_hit_tokens == 0
            return
        expected = self.naive.expect(owner, tokens)
        assert seen.num_matched_tokens == expected.matched
        copied = seen.num_hit_tokens - seen.num_matched_tokens
        usable = min(expected.agreed, len(tokens) - 1 - expected.matched)
        best = usable if usable >= MIN_COPY_TOKENS else 0
        assert copied == best if expected.is_certain else copied <= best

    def _finds_tail(self, owner: Owner, tail: Tokens) -> bool:
        begin = len(tail) // self.size * self.size
        if begin and not self.naive.has(owner, tail[:begin]):
            return False
        if len(tail) - begin < MIN_COPY_TOKENS:
            return True  # too short to be seen from outside
        return self._lookup(owner, (*tail, FOREIGN)).num_hit_tokens == len(tail)

    def _reserve(self, run: Running, num_tokens: int) -> bool:
        before = run.lease.block_ids.tolist()
        available = self.cache.room.num_available(run.lease.audiences[-1].domain)
        num_evicted = self.cache.snapshot().num_evicted_blocks
        error: OutOfBlocksError | None
        try:
            self.cache.reserve(run.lease, num_tokens)
        except OutOfBlocksError as refused:
            error = refused
        else:
            error = None
        if error is not None:
            assert error.num_needed > error.num_available >= available
            assert run.lease.block_ids.tolist() == before
            return False
        assert run.lease.block_ids[: len(before)].tolist() == before
        assert len(run.lease.block_ids) == max(len(before), -(-num_tokens // self.size))
        self.slots.clear(run.lease.block_ids[len(before) :])
        if self.cache.snapshot().num_evicted_blocks > num_evicted:
            assert self.cache.counts.free == 0, "evicted more than was needed"
        return True

    def _carry_out(self, run: Running) -> None:
        order = run.lease.pending_copy
        if order is None or run.computed != run.lease.num_matched_tokens:
            return
        self.slots.copy(order)
        run.computed += order.num_tokens
        assert run.computed == run.lease.num_hit_tokens
        self.cache.copied(run.lease)

    def _commit(self, run: Running) -> None:
        self.cache.commit(run.lease, run.array, run.computed)
        self._published(run)
        assert run.lease.num_published_tokens == run.computed // self.size * self.size

    def _published(self, run: Running) -> None:
        run.known = list(run.tokens)
        if run.publishes:
            self.naive.publish(run.owner, run.tokens, run.computed)

    def _release(self, run: Running, computed: int) -> None:
        self.cache.release(run.lease, run.array, computed)
        if run.publishes:
            self.naive.publish(run.owner, run.tokens, computed)
            self.naive.publish_tail(run.owner, run.tokens, computed)
        self.running.remove(run)

    def _common_with_running(
        self, owner: Owner, tokens: Tokens, seen: Lookup
    ) -> Iterator[int]:
        begin = seen.num_matched_tokens
        end = begin + self.size
        for run in self.running:
            if (
                run.owner == owner
                and run.publishes
                and run.lease.num_published_tokens == begin
                and len(run.known) >= end
                and len(tokens) >= end
                and tuple(run.known[:end]) == tokens[:end]
            ):
                common = 0
                while common < min(len(tokens) - 1, len(run.known)) and (
                    run.known[common] == tokens[common]
                ):
                    common += 1
                yield common


class CrowdedCacheMachine(CacheMachine):
    """So few blocks that sequences evict each other's prefixes all the time."""

    shapes = ((8, 10), (1, 12), (2, 12), (4, 12), (8, 20), (16, 12))


class RoomyCacheMachine(CacheMachine):
    """So many blocks that nothing is evicted: every hit is known exactly."""

    shapes = ((8, 1500), (2, 1500), (16, 1500))

    def check(self) -> None:
        super().check()
        assert self.num_evicted == 0


TestCrowdedCache = CrowdedCacheMachine.TestCase
TestRoomyCache = RoomyCacheMachine.TestCase
# Nothing is evicted, so a history finds more in the same time.
TestRoomyCache.settings = settings(max_examples=settings().max_examples // 2)
