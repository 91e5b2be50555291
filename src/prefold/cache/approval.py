"""Approval: a prefix that an operator lets all readers below a domain share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NewType

from prefold.blocks.table import TokenIds
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint

MAX_LABEL_LENGTH = 200

#: Random, so that nobody can guess one or tell how many there are.
ApprovalId = NewType("ApprovalId", str)


def is_seconds(value: object) -> bool:
    """Whether it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalTerms:
    """What an approval is called, and how long it holds.

    Attributes:
        label: For people; printable, unique in the domain for a fingerprint.
        pinned: Whether its blocks are never evicted while it holds.
        ttl_s: Seconds after which it ends by itself; None for never.

    Raises:
        InvalidInputError: The label is empty, too long or not printable, or the time is
            not a finite number above 0.
    """

    label: str
    pinned: bool = False
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        label: object = self.label
        if not isinstance(label, str) or not label.strip():
            raise InvalidInputError("an approval needs a label, a text that is not blank")
        if len(self.label) > MAX_LABEL_LENGTH or not self.label.isprintable():
            raise InvalidInputError(
                f"a label is printable and has at most {MAX_LABEL_LENGTH} characters, "
                f"got {len(self.label)}"
            )
        if not isinstance(self.pinned, bool):
            raise InvalidInputError("pinned must be true or false")
        if self.ttl_s is not None and not (is_seconds(self.ttl_s) and self.ttl_s > 0):
            raise InvalidInputError(
                f"ttl_s must be a number of seconds above 0, or None for no end, "
                f"got {self.ttl_s!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """An approved prefix.

    Its blocks are cached, unless it is not pinned and they were evicted. Then its
    readers compute them for themselves, each domain its own, until it is approved again.

    Attributes:
        domain: Its readers are this domain and all below it.
        tokens: Whole blocks from position 0 on.
        created_at: On the cache's clock.
        expires_at: On the same clock; None for never.
    """

    approval_id: ApprovalId
    terms: ApprovalTerms
    domain: Domain
    fingerprint: Fingerprint = field(repr=False)
    tokens: TokenIds = field(repr=False, compare=False)
    created_at: float
    expires_at: float | None

    @property
    def label(self) -> str:
        return self.terms.label

    @property
    def pinned(self) -> bool:
        return self.terms.pinned
