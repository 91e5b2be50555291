"""Twenty domains share one cache, against a naive model of who may read what.

After every move: each permitted hit of whole blocks happens and no other; inside a
block no more is copied than is permitted to agree, and all of it where every child is
compared; nothing is there that nobody published; what is pinned or in use is never
lost; receipts are what became unreachable; and all invariants hold.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from prefold.blocks.pool import BlockState
from prefold.cache import (
    APPROVING,
    Access,
    ApprovalId,
    ApprovalTerms,
    ByAge,
    ByApproved,
    ByDomain,
    ByField,
    ByFingerprint,
    ByPrefix,
    Everything,
    PrefixCache,
    Selector,
)
from prefold.errors import CapacityError, InvalidInputError, OutOfBlocksError, StateError
from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain
from prefold.tree import invalidation
from prefold.tree.dead import all_children
from prefold.tree.node import Node
from prefold.tree.path import path_to
from prefold.tree.walk import MIN_COPY_TOKENS
from support.fingerprints import make_fingerprint
from support.naive_sharing import (
    Asked,
    Block,
    Given,
    NaiveSharing,
    Path,
    Published,
    tokens_of,
)
from support.running import Running, as_tokens
from support.settable_clock import SettableClock
from support.slots import SlotStore

SALTLESS = [
    *["public", "a", "a/b", "a/b/c", "a/b/d", "a/e", "a/e/f", "ab", "ab/c", "z"],
    *["z/y", "z/y/x", "q"],
]
DOMAINS = [
    *(Domain(path) for path in SALTLESS),
    *(Domain(path, b"1") for path in ("public", "a", "a/b", "a/b/c", "z", "q")),
    Domain("a", b"2"),
]
#: The related ones come more often, or nobody would ever share.
COMMON = [PUBLIC, Domain("a"), Domain("a/b"), Domain("a/b/c"), Domain("a", b"1")]
APPROVERS = [PUBLIC, Domain("a"), Domain("a"), Domain("a/b"), Domain("z")]
LABELS = ["one", "two", "three", "four"]
SEEDS = st.integers(0, 2**32 - 1)
NUM_MOVES = 4
MAX_RUNNING = 5
SIZE = 6
NUM_BLOCKS = 40
#: A token no sequence has.
FOREIGN = 9


@dataclass
class Seen:
    """What stands in the trees: whole blocks by path, and tails."""

    blocks: dict[Path, Node]
    tails: set[tuple[Path, Audience, Block]]
    num_tails: int


class SharingMachine(RuleBasedStateMachine):
    @initialize(counts_all=st.booleans())
    def make(self, *, counts_all: bool) -> None:
        """Make an empty cache; where it does not count all, old nodes stand for long."""
        limits = (10_000, 64) if counts_all else (2, 1)
        self.limits = patch.multiple(
            invalidation, MAX_COUNTED=limits[0], NODES_A_STEP=limits[1]
        )
        self.limits.start()
        self.clock = SettableClock(1_000.0)
        self.cache = PrefixCache(num_blocks=NUM_BLOCKS, block_size=SIZE, clock=self.clock)
        self.fingerprints = [
            make_fingerprint(block_size=SIZE, weights=bytes([w])) for w in range(2)
        ]
        self.slots = SlotStore(NUM_BLOCKS, SIZE)
        self.naive = NaiveSharing(SIZE)
        self.running: list[Running] = []
        self.asked: dict[int, Asked] = {}
        self.past: list[tuple[int, ...]] = [(0,) * (3 * SIZE)]
        self.num_evicted = 0
        self.num_rules = 0

    @rule(seed=SEEDS)
    def move(self, seed: int) -> None:
        self.num_rules += 1
        # Equal seeds, which are common, should not mean equal moves.
        dice = Random(1_000_003 * seed + self.num_rules)  # noqa: S311 -- a test's dice
        moves = {
            self.serve: 8,
            self.acquire: 3,
            self.compute: 6,
            self.fork: 1,
            self.release: 4,
            self.approve: 6,
            self.withdraw: 2,
            self.wait: 2,
            self.evict: 1,
            self.invalidate: 2,
        }
        for chosen in dice.choices(list(moves), list(moves.values()), k=NUM_MOVES):
            self.clock.advance(1.0)
            chosen(dice)
            self.check(dice)

    # -- a sequence's life ---------------------------------------------------------

    def serve(self, dice: Random) -> None:
        run = self._acquire(dice)
        for _ in range(dice.randint(1, 3)):
            self._compute(run, dice.randint(1, 2 * SIZE), dice)
        self._release(run)

    def acquire(self, dice: Random) -> None:
        self._acquire(dice)

    def compute(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is not None:
            self._compute(run, dice.randint(1, 2 * SIZE), dice)

    def fork(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is None or run.lease.copy_source is not None:
            return
        try:
            forks = self.cache.fork(run.lease, run.array, run.computed, 1)
        except OutOfBlocksError:
            forks = []
        self._published(run)
        for fork in forks:
            self.slots.clear(fork.lease.block_ids[fork.lease.num_published :])
            if fork.copy is not None:
                self.slots.copy(fork.copy)
            twin = Running(
                fork.lease,
                run.owner,
                list(run.tokens),
                run.access,
                run.computed,
                is_doomed=run.is_doomed,
            )
            self.running.append(twin)
            self.asked[id(twin)] = self.asked[id(run)]

    def release(self, dice: Random) -> None:
        run = self._pick(dice)
        if run is not None:
            self._release(run)

    def evict(self, dice: Random) -> None:
        """Take and give back blocks, so that what is idle goes for them."""
        lease = self.cache.acquire(
            self.fingerprints[0], Domain("evictor"), as_tokens([FOREIGN])
        )
        num_blocks = dice.randint(
            0, self.cache.room.num_available(lease.audiences[-1].domain)
        )
        self.cache.reserve(lease, num_blocks * SIZE)
        self.cache.release(lease, as_tokens([FOREIGN]), 0)

    # -- approvals -----------------------------------------------------------------

    def approve(self, dice: Random) -> None:
        """Compute a prefix to the end and approve it; or what was begun before."""
        domain = dice.choice(APPROVERS)
        run = self._acquire(dice, Asked(domain, approves=True))
        self._compute(run, len(run.tokens) - run.computed, dice)
        num_tokens = dice.randint(SIZE, max(SIZE, len(run.tokens)))
        pinned, ttl_s = dice.random() < 0.3, dice.choice([None, 20.0, 60.0])
        terms = ApprovalTerms(label=dice.choice(LABELS), pinned=pinned, ttl_s=ttl_s)
        num_pinned = self.cache.approved.num_pinned_blocks
        whole = tuple(run.tokens[: num_tokens // SIZE * SIZE])
        now = self.clock.now
        held = [
            it
            for it in self.naive.given
            if it.holds(now) and it.number == run.owner[0] and it.domain == domain
        ]
        try:
            approval = self.cache.approve(run.lease, num_tokens, terms)
        except CapacityError:
            assert pinned
            assert num_pinned + len(whole) // SIZE > NUM_BLOCKS * 8 // 10
        except StateError:
            assert run.is_doomed
        except InvalidInputError:
            is_short = run.lease.num_published_tokens < max(len(whole), SIZE)
            is_held = any(it.tokens == whole or it.label == terms.label for it in held)
            assert is_short or is_held
        else:
            known = {it.approval_id: it for it in held}
            given = known.get(approval.approval_id)
            if given is None:
                ends_at = float("inf") if ttl_s is None else now + ttl_s
                given = Given(
                    approval.approval_id,
                    terms.label,
                    run.owner[0],
                    domain,
                    whole,
                    pinned,
                    now,
                    ends_at,
                )
                assert not any(it.tokens == whole for it in held)
                self.naive.given.append(given)
            assert given.tokens == whole == tuple(approval.tokens.tolist())
            for path, its in self.naive.blocks.items():
                tokens = tokens_of(path)
                is_its = path[0] == given.number and path[1][-1][0] == Audience(
                    AudienceKind.APPROVED, domain
                )
                if is_its and whole[: len(tokens)] == tokens and given not in its.given:
                    its.given.append(given)
        if dice.random() < 0.9:
            self._release(run)

    def withdraw(self, dice: Random) -> None:
        if self.naive.given:
            given = dice.choice(self.naive.given)
            self._invalidate(ByApproved(approval_id=ApprovalId(given.approval_id)))

    def wait(self, dice: Random) -> None:
        self.clock.advance(float(dice.choice([5, 30])))

    # -- invalidation --------------------------------------------------------------

    def invalidate(self, dice: Random) -> None:
        number, domain = self._number(dice), dice.choice([*DOMAINS, *COMMON])
        fingerprint = self.fingerprints[number]
        tokens = self._prompt(dice)
        selector: Selector
        match dice.randrange(12):
            case 0:
                selector = Everything()
            case 1:
                selector = ByFingerprint(fingerprint=fingerprint)
            case 2:
                selector = ByField(name="weights", value=bytes([number]))
            case 3 | 4:
                selector = ByDomain(domain=domain, below=dice.random() < 0.5)
            case 5 | 6:
                selector = ByAge(older_than_s=dice.choice([3.0, 10.0, 40.0]))
            case _ if len(tokens) >= SIZE:
                selector = ByPrefix(
                    fingerprint=fingerprint,
                    domain=dice.choice([None, domain, *COMMON]),
                    tokens=as_tokens(tokens),
                )
            case _:
                return
        self._invalidate(selector)

    def _invalidate(self, selector: Selector) -> None:
        """Invalidate, and say from the naive model what that must do."""
        now = self.clock.now
        # Asking for a version ends what has expired, which is in no receipt.
        for fingerprint in self.fingerprints:
            self.cache.version(fingerprint)
        self._sync()
        before = self._look()
        open_before = {path for path in before.blocks if self._is_anyones(path)}
        lost = {path for path in self.naive.blocks if self._covers(selector, path)}
        for given in self.naive.given:
            if given.holds(now) and self._covers_given(selector, given):
                given.is_over = True
        closed = {path for path in open_before if not self._is_anyones(path)}
        tails_before = {tail for tail in before.tails if self._covers_tail(selector, tail)}
        receipt = self.cache.invalidate(selector)
        self.naive.tails -= tails_before
        num_known = len(self.naive.blocks)
        self.naive.forget(lost)
        after = self._look()
        num_lost = len(before.blocks.keys() - after.blocks.keys() | closed)
        num_lost += before.num_tails - after.num_tails
        assert len(lost) <= num_known
        held = {given.approval_id for given in self.naive.given if given.holds(now)}
        assert {it.approval_id for it in self.cache.approved.approvals()} == held
        if receipt.is_upper_bound:
            assert receipt.num_blocks >= num_lost
        else:
            assert receipt.num_blocks == num_lost
        assert 0 <= receipt.num_leased_blocks <= receipt.num_blocks
        for run in self.running:
            if self._covers_run(selector, run):
                run.is_doomed = True
            assert run.lease.is_doomed == run.is_doomed

    def _covers(self, selector: Selector, path: Path) -> bool:
        number, blocks = path
        if isinstance(selector, ByAge):
            limit = self.clock.now - selector.older_than_s
            return self.naive.blocks[path].at < limit
        return self._covers_what(selector, number, blocks[-1][0].domain, tokens_of(path))

    def _covers_tail(self, selector: Selector, tail: tuple[Path, Audience, Block]) -> bool:
        # Too old a tail is found missing; how old each is, nobody noted.
        above, audience, _ = tail
        return self._covers_what(selector, above[0], audience.domain, tokens_of(above))

    def _covers_given(self, selector: Selector, given: Given) -> bool:
        if isinstance(selector, ByApproved):
            return given.approval_id == selector.approval_id
        if isinstance(selector, ByAge):
            ats = [its.at for its in self.naive.blocks.values() if given in its.given]
            limit = self.clock.now - selector.older_than_s
            return min([given.created_at, *ats]) < limit
        return self._covers_what(selector, given.number, given.domain, given.tokens)

    def _covers_run(self, selector: Selector, run: Running) -> bool:
        if run.is_doomed:
            return False
        number, path = run.owner[0], self._path(run)
        ends = range(1, len(path) + 1)
        if any((number, path[:end]) not in self.naive.blocks for end in ends):
            return True
        if isinstance(selector, ByAge):
            return run.lease.started_at < self.clock.now - selector.older_than_s
        known = tuple(run.known)
        if isinstance(selector, ByPrefix):
            # What it may still turn out to begin with, it begins with.
            known += _whole(selector)[len(known) :]
        writes = self.asked[id(run)].writes.domain
        return self._covers_what(selector, number, writes, known)

    def _covers_what(
        self, selector: Selector, number: int, domain: Domain, tokens: tuple[int, ...]
    ) -> bool:
        match selector:
            case Everything():
                return True
            case ByFingerprint() | ByField():
                return self._is_fingerprint(selector, number)
            case ByDomain():
                return self._is_domain(selector, domain)
            case ByPrefix():
                whole = _whole(selector)
                return (
                    self.fingerprints[number] == selector.fingerprint
                    and tokens[: len(whole)] == whole
                    and selector.domain in {None, domain}
                )
            case _:
                return False

    def _is_fingerprint(self, selector: ByFingerprint | ByField, number: int) -> bool:
        if isinstance(selector, ByFingerprint):
            return self.fingerprints[number] == selector.fingerprint
        return selector.value == bytes([number])

    def _is_domain(self, selector: ByDomain, domain: Domain) -> bool:
        top = selector.domain
        if domain == top:
            return True
        if not selector.below or top.salt is not None:
            return False
        above = top.path.split("/")
        return top == PUBLIC or domain.path.split("/")[: len(above)] == above

    def _is_anyones(self, path: Path) -> bool:
        """Whether somebody may end a match there."""
        return self.naive.is_open(path, Asked(PUBLIC), self.clock.now)

    # -- after every move ----------------------------------------------------------

    def check(self, dice: Random) -> None:
        self.cache.check_invariants()
        for run in self.running:
            read = self.slots.read(run.lease, run.computed)
            assert read.tolist() == run.marks[: run.computed].tolist()
            assert run.lease.is_doomed == run.is_doomed
        self._sync()
        self._everybody_finds_what_is_theirs(dice)

    def _sync(self) -> None:
        """Hold what stands in the trees against what was published; forget the evicted."""
        self.naive.note_crowds()
        seen = self._look()
        num_evicted = self.cache.snapshot().num_evicted_blocks - self.num_evicted
        self.num_evicted += num_evicted
        unknown = seen.blocks.keys() - self.naive.blocks.keys()
        assert not unknown, "something stands there that nobody could publish"
        assert seen.tails <= self.naive.tails
        gone = self.naive.blocks.keys() - seen.blocks.keys()
        # What nobody may end a match in is freed as soon as nothing needs it.
        assert sum(self._is_anyones(path) for path in gone) <= num_evicted
        now = self.clock.now
        for path in gone:
            its = self.naive.blocks[path].given
            assert not any(it.pinned and it.holds(now) for it in its), "a pin was lost"
        self.naive.forget(set(gone))
        self.naive.tails = seen.tails
        for run in self.running:
            if not run.is_doomed:
                blocks = self._path(run)
                for end in range(1, len(blocks) + 1):
                    assert (run.owner[0], blocks[:end]) in self.naive.blocks

    def _look(self) -> Seen:
        blocks: dict[Path, Node] = {}
        tails: set[tuple[Path, Audience, Block]] = set()
        num_tails = 0
        trees = self.cache._trees
        for number, fingerprint in enumerate(self.fingerprints):
            tree = trees.peek(fingerprint)
            pending: list[tuple[Node, Path]] = [(tree.root, (number, ()))]
            for node, above in pending:
                for child in all_children(node):
                    if tree.audiences.is_dead(child) or child.readers.is_throwaway:
                        continue
                    audience, tokens = child.readers.audience, child.tokens.tolist()
                    if child.is_partial:
                        tails.add((above, audience, tuple(tokens)))
                        num_tails += 1
                        continue
                    path = above
                    for begin in range(0, len(tokens), SIZE):
                        block = tuple(tokens[begin : begin + SIZE])
                        path = (number, (*path[1], (audience, block)))
                        assert path not in blocks, "a block stands there twice"
                        blocks[path] = child
                    pending.append((child, path))
        return Seen(blocks, tails, num_tails)

    def _everybody_finds_what_is_theirs(self, dice: Random) -> None:
        asked = [Asked(domain) for domain in (*dice.sample(COMMON, k=2), self._any(dice))]
        wanted = dice.choice([frozenset({"a", "public"}), frozenset[str]()])
        asked.append(Asked(self._any(dice), wanted))
        asked.append(Asked(dice.choice(APPROVERS), approves=True))
        known = sorted(self.naive.blocks, key=_order)
        prompts = [self._prompt(dice)]
        for path in dice.sample(known, k=min(2, len(known))):
            tail = [dice.randrange(2) for _ in range(dice.randint(1, SIZE))]
            prompts.append((*tokens_of(path), *tail))
        number = self._number(dice)
        for prompt, who in itertools.product(prompts, asked):
            self._check_hit(number, who, prompt)

    def _any(self, dice: Random) -> Domain:
        return dice.choice(DOMAINS)

    def _check_hit(self, number: int, asked: Asked, tokens: tuple[int, ...]) -> None:
        found = self.cache.lookup(
            self.fingerprints[number],
            asked.domain,
            as_tokens(tokens),
            access=_access(asked),
        )
        least = MIN_COPY_TOKENS
        expected = self.naive.expect(number, asked, tokens, self.clock.now, least)
        assert found.num_matched_tokens == expected.matched
        copied = found.num_hit_tokens - found.num_matched_tokens
        assert copied <= expected.copied
        assert copied == expected.copied or not expected.is_certain

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.limits.stop()
        for run in list(self.running):
            self._release(run)
            self.cache.check_invariants()
        self.cache.invalidate(Everything())
        lease = self.cache.acquire(
            self.fingerprints[0], Domain("evictor"), as_tokens([FOREIGN])
        )
        self.cache.reserve(lease, NUM_BLOCKS * SIZE)
        self.cache.release(lease, as_tokens([FOREIGN]), 0)
        self.cache.check_invariants()
        assert self.cache.counts.free == NUM_BLOCKS

    # -- helpers -------------------------------------------------------------------

    def _number(self, dice: Random) -> int:
        return dice.choice([*[0] * 6, 1])

    def _ask(self, dice: Random) -> Asked:
        if dice.random() < 0.1:
            return Asked(dice.choice(APPROVERS), approves=True)
        domain = dice.choice([*DOMAINS, *COMMON * 5])
        return Asked(domain, dice.choice([*[None] * 6, frozenset({"a"})]))

    def _acquire(self, dice: Random, asked: Asked | None = None) -> Running:
        while len(self.running) >= MAX_RUNNING:
            self.release(dice)
        asked = self._ask(dice) if asked is None else asked
        number, tokens = self._number(dice), self._prompt(dice)
        access = _access(asked)
        if not asked.approves and dice.random() < 0.15:
            access = Access(read=True, write=False, approved=asked.wanted)
        # Ends what has expired, which who approves sees while it is there.
        self.cache.version(self.fingerprints[number])
        self._sync()
        self._check_hit(number, asked, tokens)
        seen = self.cache.lookup(
            self.fingerprints[number], asked.domain, as_tokens(tokens), access=access
        )
        lease = self.cache.acquire(
            self.fingerprints[number], asked.domain, as_tokens(tokens), access=access
        )
        assert lease.num_hit_tokens == seen.num_hit_tokens
        # A lease sweeps a little first, and what is swept is a newer loss to tell of.
        is_newer = (lease.miss.lost_at or 0.0) > (seen.miss.lost_at or 0.0)
        assert is_newer or lease.miss.kind == seen.miss.kind
        self.past.append(tokens)
        # Content is the same for all domains: only who may read it differs.
        run = Running(lease, (number, 0), list(tokens), access, lease.num_matched_tokens)
        self.running.append(run)
        self.asked[id(run)] = asked
        for audience, _ in self._path(run):
            assert asked.may_read(audience)
        return run

    def _compute(self, run: Running, num_tokens: int, dice: Random) -> None:
        if run.lease.copy_source is not None and self._reserve(run, len(run.tokens)):
            order = run.lease.pending_copy
            if order is not None:
                self.slots.copy(order)
                run.computed += order.num_tokens
                self.cache.copied(run.lease)
        end = run.computed + num_tokens
        if not self._reserve(run, end):
            return
        while len(run.tokens) < end:
            run.tokens.append(int(dice.random() < 0.2))
        for block in run.lease.block_ids[run.computed // SIZE : -(-end // SIZE)]:
            assert self.cache._pool.state_of(int(block)) is BlockState.PRIVATE
        self.slots.write(run.lease, run.computed, run.marks[run.computed : end])
        run.computed = end
        self.cache.commit(run.lease, run.array, end)
        self._published(run)
        if dice.random() < 0.3:
            run.computed = self.cache.adopt(run.lease, run.array, end)
            self._published(run)

    def _reserve(self, run: Running, num_tokens: int) -> bool:
        before = len(run.lease.block_ids)
        try:
            self.cache.reserve(run.lease, num_tokens)
        except OutOfBlocksError:
            return False
        self.slots.clear(run.lease.block_ids[before:])
        return True

    def _release(self, run: Running) -> None:
        self.cache.commit(run.lease, run.array, run.computed)
        self._published(run)
        asked, number = self.asked[id(run)], run.owner[0]
        path = (number, self._path(run))
        end = run.lease.num_published_tokens
        if run.publishes and not asked.approves and run.computed > end:
            tail = (path, asked.writes, tuple(run.tokens[end : run.computed]))
            self.naive.tails.add(tail)
        self.cache.release(run.lease, run.array, run.computed)
        self.running.remove(run)

    def _published(self, run: Running) -> None:
        """Note what a run has published; it may have been its own to publish only."""
        run.known = list(run.tokens)
        if run.is_doomed:
            return
        asked, number = self.asked[id(run)], run.owner[0]
        blocks = self._path(run)
        for index, (audience, block) in enumerate(blocks):
            path = (number, blocks[: index + 1])
            assert asked.may_read(audience)
            assert block == tuple(run.tokens[index * SIZE : (index + 1) * SIZE])
            if path not in self.naive.blocks:
                assert run.publishes
                assert audience == asked.writes
                self.naive.blocks[path] = Published(self.clock.now)

    def _path(self, run: Running) -> tuple[tuple[Audience, Block], ...]:
        """Return where a run's lease ends, without what only it can see."""
        blocks: list[tuple[Audience, Block]] = []
        for node in path_to(run.lease.node):
            if node.readers.is_throwaway:
                break
            tokens = node.tokens.tolist()
            for begin in range(0, len(tokens), SIZE):
                block = tuple(tokens[begin : begin + SIZE])
                blocks.append((node.readers.audience, block))
        return tuple(blocks)

    def _prompt(self, dice: Random) -> tuple[int, ...]:
        old = dice.choice(self.past[-8:])
        if self.naive.blocks and dice.random() < 0.6:
            old = tokens_of(dice.choice(sorted(self.naive.blocks, key=_order)))
        cut = len(old) if dice.random() < 0.5 else dice.randint(0, len(old))
        more = [int(dice.random() < 0.3) for _ in range(dice.randrange(SIZE))]
        pad = dice.choice([0, 0, SIZE])
        return (*old[:cut], *more, *(1 for _ in range(pad)))[: 5 * SIZE] or (0,)

    def _pick(self, dice: Random) -> Running | None:
        return dice.choice(self.running) if self.running else None


def _access(asked: Asked) -> Access:
    if asked.approves:
        return APPROVING
    return Access(read=True, write=True, approved=asked.wanted)


def _order(path: Path) -> tuple[object, ...]:
    number, blocks = path
    return number, tokens_of(path), [audience.domain.path for audience, _ in blocks]


def _whole(selector: ByPrefix) -> tuple[int, ...]:
    tokens = selector.tokens.tolist()
    return tuple(tokens[: len(tokens) // SIZE * SIZE])


TestSharing = SharingMachine.TestCase
# A rule makes several moves, each of which is checked.
TestSharing.settings = settings(max_examples=settings().max_examples // 2)


#: A history in which the run that a copy is pending from is joined with the one before it.
_JOINED = [
    7_553,
    3_046_507,
    100_000,
    9_012,
    77_050,
    1_038_019,
    145_508,
    8_684_750,
    6_576,
    11_468,
    435_021,
    46,
    3_096_194,
    5_558,
    2_754,
    26_878,
    381_200_616,
]


def test_a_pending_copy_is_from_the_same_block_after_runs_are_joined() -> None:
    state = SharingMachine()
    state.make(counts_all=False)
    for seed in _JOINED:
        state.move(seed=seed)
    state.teardown()
