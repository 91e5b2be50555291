"""Selectors and receipts: what to invalidate, and what that dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefold.blocks.table import TokenIds
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """All cached KV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFingerprint:
    """All that was computed under one fingerprint."""

    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDomain:
    """All that one domain wrote for itself, under every fingerprint."""

    domain: Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPrefix:
    """What a domain wrote for itself that begins with all whole blocks of ``tokens``."""

    fingerprint: Fingerprint
    domain: Domain
    tokens: TokenIds = field(repr=False)


Selector = Everything | ByFingerprint | ByDomain | ByPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an invalidation did. It holds from the moment the call returned.

    Attributes:
        num_blocks: Published blocks that are not found any more.
        num_leased_blocks: Of those, the ones that running requests still use.
        is_upper_bound: Whether the numbers are "at most", because part of a subtree
            had been dropped before and is not swept yet.
        num_invalidations: How many there have been, this one included.
    """

    num_blocks: int
    num_leased_blocks: int
    is_upper_bound: bool
    num_invalidations: int
