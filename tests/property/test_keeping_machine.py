"""How long, how dearly and for whom idle blocks are kept, against plain rules.

Tenants with and without a share run requests with all kinds of wishes while time passes.
The model knows for every block of tokens when it was last used, with which time to live;
it does not know which blocks were evicted, only which cannot have been.
"""

from __future__ import annotations

import math
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from prefold.cache import (
    APPROVING,
    ApprovalTerms,
    ByDomain,
    PrefixCache,
    QuotaSettings,
    Retention,
    Share,
)
from prefold.errors import CapacityError, InvalidInputError, OutOfBlocksError
from prefold.eviction.registry import POLICIES
from prefold.identity.domain import Domain
from prefold.tree.account import Account
from prefold.tree.invalidation import nodes_below
from prefold.tree.path import path_to
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.settable_clock import SettableClock

SIZE = 2
NUM_BLOCKS = 40
SEEDS = st.integers(0, 2**32 - 1)
NUM_MOVES = 5

#: Two with a reservation, one below another, one with a maximum, and two with nothing.
SHARES = (
    Share(domain=Domain("acme"), reserved=0.25),
    Share(domain=Domain("acme/lab"), reserved=0.1, maximum=0.2),
    Share(domain=Domain("globex"), maximum=0.3),
)
DOMAINS = [
    Domain("acme"),
    Domain("acme/lab/x"),
    Domain("acme/search", salt=b"s"),
    Domain("globex"),
    Domain("initech"),
    Domain("hooli"),
]
WISHES = [
    Retention(),
    Retention(ttl_s=5.0),
    Retention(ttl_s=50.0, priority=2),
    Retention(priority=-3),
    Retention(ends_conversation=True),
]

Path = tuple[Domain, tuple[int, ...]]


class KeepingMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(sorted(POLICIES)), quotas=st.booleans())
    def begin(self, policy: str, *, quotas: bool) -> None:
        self.clock = SettableClock()
        shares = QuotaSettings(shares=SHARES if quotas else ())
        self.cache = PrefixCache(
            num_blocks=NUM_BLOCKS,
            block_size=SIZE,
            clock=self.clock,
            policy=policy,
            quotas=shares,
        )
        self.fingerprint = make_fingerprint(block_size=SIZE)
        #: When each published path cannot be found any more, unless it is used again.
        self.ends: dict[Path, float] = {}
        self.num_rules = 0
        self.num_labels = 0

    @rule(seed=SEEDS)
    def move(self, seed: int) -> None:
        self.num_rules += 1
        dice = Random(1_000_003 * seed + self.num_rules)  # noqa: S311 -- a test's dice
        moves = {
            self.serve: 10,
            self.fill: 3,
            self.wait: 4,
            self.expect: 2,
            self.forget: 1,
            self.approve: 1,
        }
        for chosen in dice.choices(list(moves), list(moves.values()), k=NUM_MOVES):
            chosen(dice)
            self.cache.check_invariants()
            self.nothing_expired_is_found(dice)
            self._forget_expired()

    # -- moves ---------------------------------------------------------------------

    def serve(self, dice: Random) -> None:
        domain, wish = dice.choice(DOMAINS), dice.choice(WISHES)
        tokens = self._prompt(dice)
        before = self._protected(domain)
        lease = self.cache.acquire(
            self.fingerprint, domain, as_tokens(tokens), retention=wish
        )
        hit = lease.num_matched_tokens
        # What is found by an approval goes with it, whatever was wished.
        is_own = not any(node.readers.is_approved for node in path_to(lease.node))
        self._note_use(domain, tokens[: hit * is_own], wish)
        computed = lease.num_matched_tokens
        try:
            self.cache.reserve(lease, len(tokens))
        except OutOfBlocksError:
            num_missing = -(-len(tokens) // SIZE) - len(lease.block_ids)
            assert self.cache.room.num_available(domain) < num_missing
        else:
            if lease.copy_source is not None:
                self.cache.copied(lease)
            self.clock.advance(dice.choice([0.0, 0.5]))
            computed = len(tokens)
        self.cache.release(lease, as_tokens(tokens), computed)
        self._note_use(domain, tokens[: computed * is_own], wish)
        if not is_own:
            # Below what goes with an approval, its own is kept by this wish as well.
            for end in range(SIZE, computed + 1, SIZE):
                self.ends.pop((domain, tokens[:end]), None)
        self._check_protected(before)

    def fill(self, dice: Random) -> None:
        """A request as large as this domain may have; it leaves nothing behind."""
        domain = dice.choice(DOMAINS)
        before = self._protected(domain)
        capacity = self.cache.room.capacity(domain, self.cache.approved.num_pinned_blocks)
        assert capacity <= self.cache.room.num_available(domain)
        lease = self.cache.acquire(self.fingerprint, domain, as_tokens([99]))
        self.cache.reserve(lease, dice.choice([1, capacity]) * SIZE)
        self.cache.release(lease, as_tokens([99]), 0)
        self._check_protected(before)

    def wait(self, dice: Random) -> None:
        self.clock.advance(dice.choice([0.1, 1.0, 5.0, 20.0]))

    def expect(self, dice: Random) -> None:
        found = self.cache.lookup(
            self.fingerprint, dice.choice(DOMAINS), as_tokens(self._prompt(dice))
        )
        self.cache.room.expect(found)

    def forget(self, dice: Random) -> None:
        domain = dice.choice(DOMAINS[3:])
        self.cache.invalidate(ByDomain(domain=domain))
        self.ends = {path: end for path, end in self.ends.items() if path[0] != domain}

    def approve(self, dice: Random) -> None:
        tokens, domain = self._prompt(dice), Domain(dice.choice(["acme", "globex"]))
        try:
            lease = self.cache.acquire(
                self.fingerprint, domain, as_tokens(tokens), access=APPROVING
            )
        except InvalidInputError:
            return
        computed = lease.num_matched_tokens
        try:
            self.cache.reserve(lease, len(tokens))
            computed = len(tokens)
            self.cache.commit(lease, as_tokens(tokens), computed)
            self.num_labels += 1
            pinned = dice.random() < 0.3
            terms = ApprovalTerms(label=f"{self.num_labels}", pinned=pinned, ttl_s=9.0)
            self.cache.approve(lease, len(tokens), terms, num_kept=8)
        except (CapacityError, InvalidInputError, OutOfBlocksError):
            pass  # as it may be; what matters is that everything still adds up
        finally:
            self.cache.release(lease, as_tokens(tokens), computed)

    # -- what holds ----------------------------------------------------------------

    def nothing_expired_is_found(self, dice: Random) -> None:
        paths = sorted(self.ends, key=lambda path: (path[0].path, path[1]))
        for domain, tokens in dice.sample(paths, min(len(paths), 4)):
            end = self.ends[domain, tokens]
            found = self.cache.lookup(self.fingerprint, domain, as_tokens((*tokens, 98)))
            own = found.end is not None and not found.end.readers.is_approved
            if own and found.num_matched_tokens == len(tokens):
                assert self.clock.now < end
            # Nothing was ever evicted, so it has to be there while its time is not over.
            if self.clock.now < end and not self.cache.snapshot().num_evicted_blocks:
                assert found.num_matched_tokens == len(tokens)

    def _note_use(self, domain: Domain, tokens: tuple[int, ...], wish: Retention) -> None:
        for end in range(SIZE, len(tokens) + 1, SIZE):
            path = (domain, tokens[:end])
            until = self.clock.now + wish.ttl_s
            before = self.ends.get(path, -math.inf)
            self.ends[path] = max(before, until) if before > self.clock.now else until

    def _forget_expired(self) -> None:
        now = self.clock.now
        self.ends = {path: end for path, end in self.ends.items() if end > now}

    def _protected(self, domain: Domain) -> dict[Account, int]:
        """Return what every other account has that nobody may take from it."""
        self.cache.expire_due()
        self.cache.room.sweep()
        quotas = self.cache._quotas
        mine = quotas.of_domain(domain)
        trees = self.cache._trees.all()
        nodes = [node for tree in trees for node in nodes_below(tree, (tree.root,))]
        self.first_end = min((node.expires_at for node in nodes), default=math.inf)
        return {each: each.num_protected for each in quotas.accounts() if each is not mine}

    def _check_protected(self, before: dict[Account, int]) -> None:
        # What expired meanwhile was counted before, so only whole moments compare.
        self.cache.expire_due()
        self.cache.room.sweep()
        # The ends noted here go on where a block was evicted and came back for less time.
        lost_by_time = self.first_end <= self.clock.now
        for account, num_protected in before.items():
            assert lost_by_time or account.num_idle >= num_protected

    def _prompt(self, dice: Random) -> tuple[int, ...]:
        length = dice.choice([2, 4, 4, 8, 9, 16, 30])
        kind = dice.randrange(4)
        return tuple(kind if at < 6 else dice.randrange(3) for at in range(length))


TestKeeping = KeepingMachine.TestCase
TestKeeping.settings = settings(max_examples=settings().max_examples // 3)
