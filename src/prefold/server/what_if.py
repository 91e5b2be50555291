"""What-if, live: what the requests of a running engine say about other cache sizes."""

from __future__ import annotations

from prefold.advisor.miss_curve import BUDGET
from prefold.advisor.path_marks import path_marks
from prefold.advisor.what_if import WhatIf, WhatIfMeter
from prefold.cache import PrefixCache
from prefold.engine.observer import UsedPath
from prefold.identity.block_key import root_content
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.tree.lost import marks_of

#: Domains whose seeds are remembered; salts are clients' own, so there can be many.
_MAX_SEEDS = 4096


class LiveWhatIf:
    """Follows every request that ends. Used on the engine's thread only.

    Equal blocks of two domains are two blocks, as they are in the cache. A prefix that is
    approved for several domains counts once for each.

    Args:
        cache: Whose size is varied.
        budget: Blocks that are followed, at most.

    Invariants: those of its meter; every seed belongs to the present fingerprint.
    """

    __slots__ = ("_cache", "_fingerprint", "_meter", "_seeds")

    def __init__(self, cache: PrefixCache, *, budget: int = BUDGET) -> None:
        self._cache = cache
        self._meter = WhatIfMeter(
            num_blocks=cache.num_blocks, block_size=cache.block_size, budget=budget
        )
        self._fingerprint: Fingerprint | None = None
        self._seeds: dict[tuple[Domain, bytes | None], int] = {}

    def on_used(self, path: UsedPath) -> None:
        """Take note of what a request used.

        O(tokens) in numpy, at a few nanoseconds each, and O(sampled blocks) in Python.
        """
        self._serve(path.fingerprint.of_model)
        size = self._cache.block_size
        # Who leaves nothing behind still uses what it finds.
        num_used = path.num_computed_tokens if path.access.write else path.num_cached_tokens
        num_kept = num_used // size
        num_blocks = max(num_kept, path.num_prompt_tokens // size)
        blocks = marks_of(path.tokens[: num_blocks * size], size)
        marks = path_marks(blocks, self._seed(path.domain, path.fingerprint))
        if path.access.read:
            self._meter.note_query(
                marks,
                num_kept=num_kept,
                num_prompt_tokens=path.num_prompt_tokens,
                num_hit_tokens=path.num_cached_tokens,
            )
        else:
            self._meter.note_use(marks, num_kept=num_kept)

    def read(self, fingerprint: Fingerprint) -> WhatIf:
        """Return the answers of this moment, for the model served now."""
        self._serve(fingerprint)
        return self._meter.read(self._cache.cost.fit)

    def _serve(self, fingerprint: Fingerprint) -> None:
        """Begin anew if the model is another: what the old one computed is of no use."""
        if fingerprint != self._fingerprint:
            self._meter.reset()
            self._seeds.clear()
            self._fingerprint = fingerprint

    def _seed(self, domain: Domain, fingerprint: Fingerprint) -> int:
        place = (domain, fingerprint.adapter)
        seed = self._seeds.get(place)
        if seed is None:
            if len(self._seeds) >= _MAX_SEEDS:
                self._seeds.clear()
            # The key of the place before the domain's first block: it needs the server's
            # secret, so that no client can tell which of its blocks are sampled.
            audience = Audience(kind=AudienceKind.OWN, domain=domain)
            key = self._cache.keys.key_of(audience, root_content(fingerprint))
            seed = self._seeds[place] = int.from_bytes(key[:8], "little")
        return seed

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the meter is out of order."""
        self._meter.check_invariants()
