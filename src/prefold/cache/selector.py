"""Selectors and receipts: what to invalidate, and what that dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches

from prefold.blocks.table import TokenIds
from prefold.cache.approval import ApprovalId, is_seconds
from prefold.errors import InvalidInputError
from prefold.identity.domain import AudienceKind, Domain
from prefold.identity.fingerprint import Fingerprint

#: What ``ByField`` can name.
FIELD_NAMES = tuple(each.name for each in fields(Fingerprint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """All cached KV, and all approvals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFingerprint:
    """All that was computed under one fingerprint, and what was approved of it.

    Attributes:
        fingerprint: Which one.
        with_adapters: Whether the same goes for all that differ from it in the adapter
            only.
    """

    fingerprint: Fingerprint
    with_adapters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ByField:
    """All under any fingerprint that has this value in this field.

    Attributes:
        name: Such as ``weights``, ``tokenizer``, ``chat_template``, ``adapter`` or
            ``position_config``.
        value: As in ``Fingerprint``: a digest in bytes, a number, or None.

    Raises:
        InvalidInputError: There is no such field; the message names the nearest.
    """

    name: str
    value: str | bytes | int | None = field(repr=False)

    def __post_init__(self) -> None:
        if self.name in FIELD_NAMES:
            return
        near = get_close_matches(str(self.name), FIELD_NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FIELD_NAMES)}"
        raise InvalidInputError(f"a fingerprint has no field {self.name!r}; {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDomain:
    """What a domain wrote for itself, what is approved for it, and what hangs below that.

    Under every fingerprint. Tokens that a domain outside copied into a block of its own,
    as it was allowed to, belong to that domain.

    Attributes:
        below: Whether the same goes for all domains below it, salted ones included. This
            revokes a domain, once its requests and keys are stopped.
    """

    domain: Domain
    below: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ByApproved:
    """One approval. Its blocks are matched no more, unless another approval has them.

    What readers computed after it stays theirs: a withdrawn run is transparent, and
    nothing about the KV is wrong. Where it is, invalidate by prefix.
    """

    approval_id: ApprovalId


@dataclass(frozen=True, slots=True, kw_only=True)
class ByPrefix:
    """What begins with all whole blocks of ``tokens``.

    Attributes:
        domain: Whose: what it wrote for itself, and what is approved for it. None for
            everybody's.
        kind: Of these, what is meant; None for both.
    """

    fingerprint: Fingerprint
    domain: Domain | None
    kind: AudienceKind | None = None
    tokens: TokenIds = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByAge:
    """What was published more than ``older_than_s`` seconds ago, and what hangs below it.

    Runs are as old as their oldest block, so some that is younger goes with it. A block is
    published when it is full, its last part when its request ends, and what was copied
    from another block when the copy is: by then, what it was copied from may be older.

    Raises:
        InvalidInputError: The age is not a finite number of at least 0.
    """

    older_than_s: float

    def __post_init__(self) -> None:
        age = self.older_than_s
        if not is_seconds(age) or age < 0:
            raise InvalidInputError(
                f"older_than_s must be a number of seconds of at least 0, got {age!r}"
            )


_KINDS: Mapping[type, str] = {
    Everything: "everything",
    ByFingerprint: "fingerprint",
    ByDomain: "domain",
    ByApproved: "approval",
    ByPrefix: "prefix",
    ByAge: "age",
}

Selector = Everything | ByFingerprint | ByField | ByDomain | ByApproved | ByPrefix | ByAge


def selector_kind(selector: Selector) -> str:
    """Return what kind it is, and of a field which: nothing that says what was selected."""
    if isinstance(selector, ByField):
        return f"field {selector.name}"
    return _KINDS[type(selector)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an invalidation did. It holds from the moment the call returned.

    Attributes:
        num_blocks: Published blocks that are not matched any more.
        num_leased_blocks: Of those, the ones that running requests still use.
        is_upper_bound: Whether the numbers are "at most", because part of a subtree
            had been dropped before and is not swept yet, or there was too much to count.
        num_approvals: Approvals that ended with it.
        num_invalidations: How many there have been, this one included: the epoch.
    """

    num_blocks: int
    num_leased_blocks: int
    is_upper_bound: bool
    num_approvals: int
    num_invalidations: int
