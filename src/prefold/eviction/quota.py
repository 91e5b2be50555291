"""Quotas: whose idle blocks may be taken for whom.

::

    idle blocks    | acme: reserved | acme: more | globex | everybody else | approved |
    who takes them |   acme alone   |          whoever needs blocks                   |

A tenant's *share* of the pool has two sides: what is *reserved* of its idle blocks, which
nobody else's need takes, and the *maximum* of idle blocks it may have, above which its own
go at once. Blocks that requests are using are not counted; the engine bounds those.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from prefold.errors import ConfigError, InvariantError
from prefold.identity.domain import Audience, AudienceKind, Domain
from prefold.tree.account import Account
from prefold.tree.holding import Users
from prefold.tree.node import Node

#: Pins and reservations together, at most, as a share of all blocks: the rest is left
#: for requests.
MAX_FIXED = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a domain, with all below it that has no share of its own, has of the pool.

    Attributes:
        domain: Without a salt.
        reserved: Of all blocks, from 0 to 1.
        maximum: Of all blocks, from 0 to 1, and no less than is reserved.

    Raises:
        ConfigError: A value lies outside its range, or the domain is salted.
    """

    domain: Domain
    reserved: float = 0.0
    maximum: float = 1.0

    def __post_init__(self) -> None:
        if self.domain.salt is not None:
            raise ConfigError("a share of the cache belongs to a domain without a salt")
        for name in ("reserved", "maximum"):
            check_fraction(f"the {name} share of {self.domain.path!r}", getattr(self, name))
        if self.reserved > self.maximum:
            raise ConfigError(
                f"the reserved share of {self.domain.path!r}, {self.reserved:g}, is above "
                f"its maximum, {self.maximum:g}; lower the one or raise the other"
            )


def check_fraction(name: str, value: object) -> None:
    """Refuse what is not a number from 0 to 1.

    Raises:
        ConfigError: Naming it.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= float(value) <= 1:  # type: ignore[arg-type]  # a number
        raise ConfigError(f"{name} must be a number from 0 to 1, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSettings:
    """What is whose of one pool.

    Attributes:
        shares: At most one a domain. Together they reserve at most ``MAX_FIXED``.
        max_pinned: Of all blocks, what pinned approvals may take, as far as it is not
            reserved.
        ranks_across: Whether a request's cache priority counts against other accounts,
            too, and not only against its own.

    Raises:
        ConfigError: The shares cannot all be kept, or a value lies outside its range.
    """

    shares: tuple[Share, ...] = ()
    max_pinned: float = MAX_FIXED
    ranks_across: bool = False

    def __post_init__(self) -> None:
        domains = [share.domain for share in self.shares]
        for domain in domains:
            if domains.count(domain) > 1:
                raise ConfigError(f"the domain {domain.path!r} has two shares; drop one")
        total = sum(share.reserved for share in self.shares)
        # A hair's breadth for sums such as 0.3 + 0.5.
        if total > MAX_FIXED + 1e-9:
            raise ConfigError(
                f"{total:.0%} of the cache is reserved, and at most {MAX_FIXED:.0%} may "
                "be, so that requests find room; lower the reservations"
            )
        check_fraction("max_pinned", self.max_pinned)
        if self.max_pinned > MAX_FIXED:
            raise ConfigError(
                f"max_pinned must be at most {MAX_FIXED}, got {self.max_pinned!r}"
            )


#: Everything is everybody's.
NO_QUOTAS = QuotaSettings()


class Quotas:
    """The accounts of one pool. Owned by the cache; one thread.

    Attributes:
        num_reserved: Blocks of all reservations.
        max_pinned: Blocks that may be pinned.
        num_pinned_own: Blocks that are pinned and not approved; set by who pins.

    Invariants:
        - accounts count the idle blocks of their audiences' nodes
        - between two calls of the cache no account is above its maximum
    """

    __slots__ = (
        "_approved",
        "_by_domain",
        "_limited",
        "_others",
        "max_pinned",
        "num_pinned_own",
        "num_reserved",
    )

    def __init__(self, num_blocks: int, settings: QuotaSettings = NO_QUOTAS) -> None:
        self._by_domain = {
            share.domain: Account(
                share.domain.path,
                num_reserved=math.floor(share.reserved * num_blocks),
                max_idle=math.floor(share.maximum * num_blocks),
            )
            for share in settings.shares
        }
        #: Of whoever has no share.
        self._others = Account("others", num_reserved=0, max_idle=num_blocks)
        self._approved = Account(
            "approved", num_reserved=0, max_idle=num_blocks, is_shared=True
        )
        self._limited = [it for it in self._by_domain.values() if it.max_idle < num_blocks]
        self.num_reserved = sum(it.num_reserved for it in self._by_domain.values())
        fixed = math.floor(MAX_FIXED * num_blocks) - self.num_reserved
        self.num_pinned_own = 0
        self.max_pinned = min(math.floor(settings.max_pinned * num_blocks), fixed)

    def accounts(self) -> list[Account]:
        return [self._others, self._approved, *self._by_domain.values()]

    def limited(self) -> list[Account]:
        """Return the accounts that have a maximum below the whole pool."""
        return self._limited

    def of(self, audience: Audience) -> Account:
        """Return where an audience's idle blocks are counted. O(depth of the domain).

        Approved prefixes are everybody's who may read them, so they have one account of
        their own.
        """
        if audience.kind is AudienceKind.APPROVED:
            return self._approved
        return self.of_domain(audience.domain)

    def of_domain(self, domain: Domain) -> Account:
        """Return the account of the nearest domain above, or this one, with a share."""
        if not self._by_domain:
            return self._others
        plain = Domain(domain.path)
        for each in (plain, *reversed(plain.ancestors())):
            account = self._by_domain.get(each)
            if account is not None:
                return account
        return self._others

    def is_common(self, account: Account) -> bool:
        """Whether an account is that of everybody without a share, and of approvals."""
        return account is self._others or account is self._approved

    def num_withheld(self, account: Account) -> int:
        """Return how many idle blocks this account's need cannot have at this moment.

        Those that others have reserved; and approved ones, since what somebody reserved
        may hang below them, and leaves go first.
        """
        if self.num_reserved == account.num_reserved:
            return 0
        its = self._by_domain.values()
        return self._approved.num_idle + sum(
            each.num_protected for each in its if each is not account
        )

    def num_fixed(self, domain: Domain, num_pinned: int) -> int:
        """Return how many blocks a request of ``domain`` can never count on.

        Args:
            domain: Whose.
            num_pinned: Blocks that are pinned.
        """
        others = self.num_reserved - self.of_domain(domain).num_reserved
        fixed = self.num_approved + self.num_pinned_own
        return others + fixed if others else num_pinned

    @property
    def num_approved(self) -> int:
        """Blocks of approved prefixes, pinned or not."""
        return self._approved.num_blocks

    def may_take(self, taker: Account, account: Account) -> bool:
        """Whether one more idle block of ``account`` may go for ``taker``."""
        return taker is account or account.num_idle > account.num_reserved

    def most_of(self, taker: Account, account: Account) -> int:
        """Return how many idle blocks of ``account`` may go for ``taker``."""
        if taker is account:
            return account.num_idle
        return account.num_idle - account.num_protected

    def check_invariants(self, nodes: Iterable[Node]) -> None:
        """Raise ``InvariantError`` unless the accounts count these nodes. O(nodes)."""
        counted = dict.fromkeys(self.accounts(), 0)
        by_users = Counter[tuple[Account, Users]]()
        for node in nodes:
            account = node.readers.account
            if account not in counted or account is not self.of(node.readers.audience):
                raise InvariantError("an audience's account is not its domain's")
            by_users[account, node.users] += node.num_blocks
            if node.count == 0:
                counted[account] += node.num_blocks
        for (account, users), num_blocks in by_users.items():
            account.holding.check_invariants()
            if account.holding.num_blocks(users) != num_blocks:
                raise InvariantError(f"{account} does not hold the blocks of its nodes")
        for account, num_idle in counted.items():
            if account.num_idle != num_idle:
                raise InvariantError(
                    f"{account} should count {num_idle} idle blocks of its nodes"
                )
            if account.num_excess:
                raise InvariantError(f"{account} is above its maximum")
