"""Cache driver: runs sequences through a cache as an engine would, checking every slot."""

from __future__ import annotations

from prefold.blocks.pool import BlockState
from prefold.cache import (
    APPROVING,
    KEEP,
    NO_QUOTAS,
    READ_WRITE,
    Access,
    Approval,
    ApprovalTerms,
    Lookup,
    PrefixCache,
    QuotaSettings,
    Retention,
)
from prefold.identity.domain import Domain
from prefold.tree.dead import all_children
from prefold.tree.node import Node
from support.clock import TickingClock
from support.fingerprints import make_fingerprint
from support.running import Running, as_tokens
from support.settable_clock import SettableClock
from support.slots import SlotStore

A = Domain("a")
Tokens = list[int]


class CacheDriver:
    """A cache with a slot store, for one fingerprint unless told otherwise."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        *,
        shares: bool = False,
        clock: TickingClock | SettableClock | None = None,
        policy: str = "lru",
        quotas: QuotaSettings = NO_QUOTAS,
    ) -> None:
        """Make an empty one; if it ``shares``, content is the same for all domains."""
        self._shares = shares
        self.size = block_size
        self.clock = TickingClock() if clock is None else clock
        self.cache = PrefixCache(
            num_blocks=num_blocks,
            block_size=block_size,
            clock=self.clock,
            policy=policy,
            quotas=quotas,
        )
        self.fingerprint = make_fingerprint(block_size=block_size)
        self.slots = SlotStore(num_blocks, block_size)
        self.running: list[Running] = []

    def acquire(
        self,
        tokens: Tokens,
        domain: Domain = A,
        *,
        access: Access = READ_WRITE,
        retention: Retention = KEEP,
    ) -> Running:
        """Acquire only; nothing is reserved."""
        lease = self.cache.acquire(
            self.fingerprint, domain, as_tokens(tokens), access=access, retention=retention
        )
        matched = lease.num_matched_tokens
        owner = (0, 0 if self._shares else hash(domain))
        run = Running(lease, owner, list(tokens), access, matched)
        self.running.append(run)
        self.check()
        return run

    def begin(
        self,
        tokens: Tokens,
        domain: Domain = A,
        *,
        access: Access = READ_WRITE,
        retention: Retention = KEEP,
    ) -> Running:
        """Acquire, reserve the prompt, carry a copy out."""
        run = self.acquire(tokens, domain, access=access, retention=retention)
        self.reserve(run, len(tokens))
        self.carry_out(run)
        return run

    def reserve(self, run: Running, num_tokens: int) -> None:
        before = len(run.lease.block_ids)
        self.cache.reserve(run.lease, num_tokens)
        self.slots.clear(run.lease.block_ids[before:])
        self.check()

    def carry_out(self, run: Running) -> None:
        order = run.lease.pending_copy
        if order is not None:
            self.slots.copy(order)
            run.computed += order.num_tokens
            self.cache.copied(run.lease)
            self.check()

    def compute(
        self, run: Running, end: int | None = None, *, commits: bool = True
    ) -> None:
        """Compute up to ``end``, or all known tokens."""
        end = len(run.tokens) if end is None else end
        self.reserve(run, end)
        for block in run.lease.block_ids[run.computed // self.size : -(-end // self.size)]:
            assert self.cache._pool.state_of(int(block)) is BlockState.PRIVATE
        self.slots.write(run.lease, run.computed, run.marks[run.computed : end])
        run.computed = end
        if commits:
            self.cache.commit(run.lease, run.array, end)
            self.check()

    def extend(self, run: Running, tokens: Tokens) -> None:
        """Add tokens one by one, as decoding does."""
        for token in tokens:
            run.tokens.append(token)
            self.compute(run)

    def approve(
        self,
        tokens: Tokens,
        domain: Domain = A,
        *,
        label: str = "it",
        pinned: bool = False,
        ttl_s: float | None = None,
    ) -> Approval:
        """Compute a prefix and approve it, as an engine would."""
        run = self.begin(tokens, domain, access=APPROVING)
        self.compute(run)
        terms = ApprovalTerms(label=label, pinned=pinned, ttl_s=ttl_s)
        try:
            return self.cache.approve(run.lease, len(tokens), terms)
        finally:
            self.end(run)

    def end(self, run: Running) -> None:
        self.cache.release(run.lease, run.array, run.computed)
        self.running.remove(run)
        self.check()

    def serve(
        self,
        tokens: Tokens,
        reply: Tokens | None = None,
        domain: Domain = A,
        *,
        retention: Retention = KEEP,
    ) -> int:
        """Run a whole request; return its hit tokens."""
        run = self.begin(tokens, domain, retention=retention)
        self.compute(run)
        self.extend(run, reply or [])
        self.end(run)
        return run.lease.num_hit_tokens

    def lookup(self, tokens: Tokens, domain: Domain = A) -> Lookup:
        return self.cache.lookup(self.fingerprint, domain, as_tokens(tokens))

    def hit(self, tokens: Tokens, domain: Domain = A) -> int:
        return self.lookup(tokens, domain).num_hit_tokens

    def fill(self, num_blocks: int, domain: Domain | None = None) -> None:
        """Take and give back blocks, so that what is idle is evicted for them."""
        run = self.acquire([10**6], domain or Domain("filler"))
        self.reserve(run, num_blocks * self.size)
        self.end(run)

    def fork(self, run: Running, num_forks: int) -> list[Running]:
        forks = self.cache.fork(run.lease, run.array, run.computed, num_forks)
        made = []
        for fork in forks:
            if fork.copy is not None:
                self.slots.copy(fork.copy)
            made.append(
                Running(fork.lease, run.owner, list(run.tokens), run.access, run.computed)
            )
        self.running += made
        self.check()
        return made

    def check(self) -> None:
        self.cache.check_invariants()
        for run in self.running:
            read = self.slots.read(run.lease, run.computed)
            assert read.tolist() == run.marks[: run.computed].tolist()

    @property
    def root(self) -> Node:
        return self.cache._trees.of(self.fingerprint).root

    def shape(self) -> list[list[int]]:
        """Return every node's block count, per level, in order of first tokens."""
        levels, level = [], all_children(self.root)
        while level:
            level.sort(key=lambda node: node.tokens.tolist())
            levels.append([node.num_blocks for node in level])
            level = [child for node in level for child in all_children(node)]
        return levels


def numbered(num_tokens: int, start: int = 1) -> Tokens:
    """Return distinct tokens, so that equality shows what was kept."""
    return list(range(start, start + num_tokens))
