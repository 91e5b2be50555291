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


def revoke_domain(
    domain: Domain, stepper: Stepper, cache: PrefixCache, *, drains: bool
) -> Revocation:
    """Revoke a domain between two steps. O(nodes freed).

    Args:
        domain: With all below it, salted ones included.
        stepper: Whose requests end.
        cache: What is cached.
        drains: Whether requests finish. Those that approve are aborted all the same.
    """
    num_aborted = num_draining = 0
    for reply in list(stepper.replies.values()):
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
            stepper.end(reply, FinishReason.ABORTED)
            num_aborted += 1
    receipt = cache.invalidate(ByDomain(domain=domain))
    cache.sweep()
    return Revocation(num_aborted=num_aborted, num_draining=num_draining, receipt=receipt)
