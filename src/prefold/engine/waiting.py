"""Waiting: when a queued request lets another one compute the prefix they share.

::

    prompt     [ cached | agrees with what a running sequence computes now | its own ]
               lookup^                                              common^

It waits only if that is a good part of what it would have to compute, it holds nothing
meanwhile, and the wait ends when the shared whole blocks are published, when the other
one is gone, or when the other one gets no tokens for some steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefold.cache import Lease, Lookup

#: Agreement from which waiting is always worth it, in tokens.
ENOUGH_TOKENS = 64

#: Steps without tokens after which nobody waits for a sequence any longer.
STALLED_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait for one running sequence.

    Attributes:
        owner: Its lease.
        num_target_tokens: Published tokens at which the wait ends: the common ones
            in whole blocks.
    """

    owner: Lease
    num_target_tokens: int

    @property
    def is_over(self) -> bool:
        """Whether the shared blocks are there, or never will be from this owner."""
        owner = self.owner
        return owner.is_released or owner.num_published_tokens >= self.num_target_tokens


def find_wait(
    lookup: Lookup, num_tokens: int, block_size: int, current: Wait | None
) -> Wait | None:
    """Return what a request of ``num_tokens`` tokens is to wait for, or None.

    A request with a ``current`` wait goes on for as long as anything is left to come:
    what was published meanwhile must not make the rest too little to wait for.
    """
    frontier = lookup.frontier
    if frontier is None:
        return None
    common = frontier.num_common_tokens
    target = common // block_size * block_size
    if target <= lookup.num_matched_tokens:
        return None
    goes_on = (
        current is not None
        and not current.is_over
        and (frontier.owner is current.owner or common >= current.num_target_tokens)
    )
    if not goes_on:
        agreement = common - lookup.num_hit_tokens
        num_uncached = num_tokens - lookup.num_hit_tokens
        if 2 * agreement < min(2 * ENOUGH_TOKENS, num_uncached):
            return None
    return Wait(owner=frontier.owner, num_target_tokens=target)
