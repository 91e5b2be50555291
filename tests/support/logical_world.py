"""A cache that serves requests one at a time, each in no time, on a clock of its own."""

from __future__ import annotations

from prefold.cache import NO_QUOTAS, PrefixCache, QuotaSettings
from prefold.identity.domain import Domain
from support.fingerprints import make_fingerprint
from support.running import as_tokens
from support.settable_clock import SettableClock

SIZE = 16
A = Domain("a")


class World:
    def __init__(
        self, num_blocks: int, policy: str, quotas: QuotaSettings = NO_QUOTAS
    ) -> None:
        self.clock = SettableClock()
        self.cache = PrefixCache(
            num_blocks=num_blocks,
            block_size=SIZE,
            clock=self.clock,
            policy=policy,
            quotas=quotas,
        )
        self.fingerprint = make_fingerprint(block_size=SIZE)
        self.last_token = 0

    def new(self, num_blocks: int) -> list[int]:
        """Return whole blocks that nobody has sent before."""
        first = self.last_token + 1
        self.last_token += num_blocks * SIZE
        return list(range(first, self.last_token + 1))

    def serve(
        self, prompt: list[int], num_reply_blocks: int = 0, domain: Domain = A
    ) -> int:
        """Return how many blocks of the prompt were there."""
        lease = self.cache.acquire(self.fingerprint, domain, as_tokens([*prompt, 0]))
        hit = lease.num_matched_tokens // SIZE
        if lease.copy_source is not None:
            self.cache.copied(lease)
        tokens = as_tokens([*prompt, *self.new(num_reply_blocks)])
        self.cache.reserve(lease, len(tokens))
        self.cache.release(lease, tokens, len(tokens))
        return hit

    def held(self, prompt: list[int]) -> int:
        found = self.cache.lookup(self.fingerprint, A, as_tokens([*prompt, 0]))
        return found.num_matched_tokens // SIZE

    def take(self, num_blocks: int) -> None:
        lease = self.cache.acquire(self.fingerprint, Domain("filler"), as_tokens([1]))
        self.cache.reserve(lease, num_blocks * SIZE)
        self.cache.release(lease, as_tokens([1]), 0)
