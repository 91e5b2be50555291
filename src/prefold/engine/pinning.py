"""Pinning: operators' pins, beside which every open request still finds its room."""

from __future__ import annotations

from prefold.cache import PrefixCache
from prefold.engine.stepper import Stepper


class Pinner:
    """Pins cached runs between two steps. Owned by the engine; keeps nothing.

    Args:
        stepper: Whose requests have to go on.
        cache: What is cached.
    """

    __slots__ = ("_cache", "_stepper")

    def __init__(self, stepper: Stepper, cache: PrefixCache) -> None:
        self._stepper = stepper
        self._cache = cache

    def pin(self, handle: str) -> bool:
        """Keep a run, and all that it continues, from eviction; False if it is gone.

        Args:
            handle: The run's, as the cache's browser gives it out.

        Raises:
            InvalidInputError: It is less than a block, or one request's alone.
            CapacityError: Too much would be pinned.
        """
        return self._cache.browser.pin(handle, self._stepper.num_promised_blocks())

    def unpin(self, handle: str) -> bool:
        """Let a run that was pinned be evicted again; False if it is not pinned."""
        return self._cache.browser.unpin(handle)
