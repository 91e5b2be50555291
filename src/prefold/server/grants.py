"""Grants: what a request may do with cached KV, of what it asks for.

The one place where a tenant and a wish become the engine's options. A wish only narrows::

    tenant      acme          may read, may write    approved: public, acme    at most 1 h
    wish        acme/search   read, not write        approved: acme            24 h
    granted     acme/search   read, not write        approved: acme            1 h

but for its priority, which ranks it inside its own tenant's share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prefold.cache import Access, Retention
from prefold.engine.config import RequestOptions
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from prefold.server.config import TenantConfig
from prefold.server.errors import HttpError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWish:
    """What a request asks for.

    Attributes:
        domain: A whole path; None for the tenant's.
        salt: Narrows the domain to those who know it.
        read: Whether to reuse anything.
        write: Whether to leave anything behind.
        approved: Paths of the domains whose approved prefixes to read; None for all.
        ttl_s: Seconds after its last use in which its KV may be reused; None for the
            tenant's.
        priority: Of two idle entries of the tenant, the lower one goes first.
        ends_conversation: Whether nothing is expected to follow.
        domain_field: Which field of the request gave the domain.
    """

    domain: str | None = None
    salt: str | None = field(default=None, repr=False)
    read: bool = True
    write: bool = True
    approved: Sequence[str] | None = None
    ttl_s: float | None = None
    priority: int = 0
    ends_conversation: bool = False
    domain_field: str = "cache.domain"


class Grants:
    """Knows which domains are whose.

    Args:
        tenants: All that are served.
        ttl_s: Seconds that KV is kept unused where neither tenant nor request says; None
            for as long as there is room.
    """

    __slots__ = ("_foreign", "_ttl_s")

    def __init__(
        self, tenants: Iterable[TenantConfig], *, ttl_s: float | None = None
    ) -> None:
        self._ttl_s = ttl_s
        domains = {tenant.name: Domain(tenant.domain) for tenant in tenants}
        # Other tenants' domains inside of a tenant's own.
        self._foreign = {
            name: [it for it in domains.values() if it != own and it.is_within(own)]
            for name, own in domains.items()
        }

    def options(self, tenant: TenantConfig, wish: CacheWish) -> RequestOptions:
        """Return what a request of the tenant is granted.

        Raises:
            HttpError: It asks for a domain that is not its tenant's.
        """
        options = self.operator_options(tenant, wish)
        for foreign in self._foreign.get(tenant.name, ()):
            if options.domain.is_within(foreign):
                raise _not_allowed(tenant, wish)
        return options

    def operator_options(self, tenant: TenantConfig, wish: CacheWish) -> RequestOptions:
        """Return the same for an operator, who may name what other tenants have below.

        Raises:
            HttpError: The domain is outside the tenant's.
        """
        salt = None if wish.salt is None else wish.salt.encode()
        try:
            domain = Domain(tenant.domain).narrowed_to(wish.domain, salt)
        except InvalidInputError as error:
            raise _not_allowed(tenant, wish) from error
        return RequestOptions(
            domain=domain,
            access=Access(
                read=tenant.may_read and wish.read,
                write=tenant.may_write and wish.write,
                approved=_common(tenant.approved, wish.approved),
            ),
            retention=Retention(
                ttl_s=self._ttl_of(tenant, wish),
                priority=wish.priority,
                ends_conversation=wish.ends_conversation,
            ),
            tenant=tenant.name,
        )

    def _ttl_of(self, tenant: TenantConfig, wish: CacheWish) -> float:
        stated = [ttl_s for ttl_s in (tenant.ttl_s, wish.ttl_s) if ttl_s is not None]
        if stated:
            return min(stated)
        return math.inf if self._ttl_s is None else self._ttl_s


def _common(
    granted: Sequence[str] | None, wished: Sequence[str] | None
) -> frozenset[str] | None:
    if granted is None or wished is None:
        only = wished if granted is None else granted
        return None if only is None else frozenset(only)
    return frozenset(granted) & frozenset(wished)


def _not_allowed(tenant: TenantConfig, wish: CacheWish) -> HttpError:
    # The same sentence whatever is there, so that it tells nothing of other tenants.
    return HttpError(
        403,
        f"{wish.domain_field} must be {tenant.domain!r}, or a domain below it that is "
        "nobody else's",
        param=wish.domain_field,
        code="domain_not_allowed",
    )
