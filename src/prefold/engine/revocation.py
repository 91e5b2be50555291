"""Revocation: the end of all that a domain, and those below it, have in an engine.

::

    requests            aborted, or left to finish without leaving anything behind
    cached, approved    unreachable from here on, and freed where nobody uses it

Whoever revokes keeps new requests of those domains away: a later one is like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefold.cache import ByDomain, PrefixCache, Receipt
from prefold.engine.request import FinishReason
from prefold.engine.stepper import Stepper
from prefold.identity.domain import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """What a revocation did.

    Attributes:
        num_aborted: Requests that it ended.
        num_draining: Requests that it lets finish.
        receipt: What became unreachable.
    """

    num_aborted: int
    num_draining: int
    receipt: Receipt


class Revoker:
    """Revokes domains between two steps. Owned by the engine; keeps nothing.

    Args:
        stepper: Whose requests end.
        cache: What is cached.
    """

    __slots__ = ("_cache", "_stepper")

    def __init__(self, stepper: Stepper, cache: PrefixCache) -> None:
        self._stepper = stepper
        self._cache = cache

    def revoke(self, domain: Domain, *, drains: bool = False) -> Revocation:
        """End all that a domain has here, with all below it. O(nodes freed).

        Args:
            domain: Domains below it are meant too, salted ones included.
            drains: Whether requests finish. Those that approve are aborted all the same.
        """
        with self._stepper.unbroken():
            num_aborted, num_draining = self._end_requests(domain, drains=drains)
            receipt = self._cache.invalidate(ByDomain(domain=domain))
            self._cache.room.sweep()
        return Revocation(
            num_aborted=num_aborted, num_draining=num_draining, receipt=receipt
        )

    def _end_requests(self, domain: Domain, *, drains: bool) -> tuple[int, int]:
        num_aborted = num_draining = 0
        for reply in list(self._stepper.replies.values()):
            sequence = reply.sequence
            options = sequence.options
            if not options.domain.is_within(domain):
                continue
            if drains and options.approval is None:
                # One that waits, or will have to give its blocks back, gets a lease later,
                # to which the invalidation of today means nothing.
                access = replace(options.access, write=False)
                sequence.options = replace(options, access=access)
                num_draining += 1
            else:
                self._stepper.end(reply, FinishReason.ABORTED)
                num_aborted += 1
        return num_aborted, num_draining
