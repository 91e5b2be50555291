"""Permits: which calls may begin, whose KV they may use, and which a revocation ends.

A revocation takes effect between two steps of the engine, but a call passes several
stages before it gets there. None may slip through in any of them::

    let in, body not read yet    refused when it asks for a permit
    permit taken, not queued     refused on the engine's thread, right before
    queued or running            ended there, by the engine
"""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakSet

from prefold.engine.config import RequestOptions
from prefold.identity.domain import Domain
from prefold.server.credentials import Authenticator, Caller
from prefold.server.errors import HttpError
from prefold.server.grants import CacheWish, Grants


class Permit:
    """One call's. Changed on the event loop, and read on the engine's thread as well.

    Attributes:
        options: What the call is granted.
        may_begin: Whether the engine may still take it in.
        is_revoked: Whether its replies were ended, or refused, by a revocation.
    """

    __slots__ = ("__weakref__", "is_revoked", "may_begin", "options")

    def __init__(self, options: RequestOptions) -> None:
        self.options = options
        self.may_begin = True
        self.is_revoked = False

    def check(self) -> None:
        """Refuse what may not begin any more.

        Raises:
            HttpError: Its domain was revoked.
        """
        if not self.may_begin:
            raise revoked()


class Permits:
    """Gives permits for calls. Used by both planes, on one event loop.

    Attributes:
        authenticator: Who is let in, and as which tenant.
        grants: What each tenant's requests may do.
    """

    __slots__ = ("_given", "authenticator", "grants")

    def __init__(self, authenticator: Authenticator, *, ttl_s: float | None = None) -> None:
        """Give none yet.

        Args:
            authenticator: Who is let in, and as which tenant.
            ttl_s: As ``Grants`` takes it.
        """
        self.authenticator = authenticator
        self.grants = Grants(authenticator.tenants, ttl_s=ttl_s)
        # Whoever holds one is a call that has not ended; nobody has to give it back.
        self._given: WeakSet[Permit] = WeakSet()

    def take(self, caller: Caller, wish: CacheWish) -> Permit:
        """Return a permit for a call that is about to be queued.

        Raises:
            AuthenticationError: The caller's tenant was revoked meanwhile.
            HttpError: It asks for a domain that is not its tenant's.
        """
        self.authenticator.check(caller)
        permit = Permit(self.grants.options(caller.tenant, wish))
        self._given.add(permit)
        return permit

    def revoke(self, domain: Domain, *, drains: bool) -> Collection[str]:
        """Refuse the keys of all tenants at or below a domain, and calls of those domains.

        Returns the names of the tenants. What the engine has is for the engine to end;
        with ``drains``, it may finish.
        """
        names = [
            tenant.name
            for tenant in self.authenticator.tenants
            if Domain(tenant.domain).is_within(domain)
        ]
        self.authenticator.refuse(names)
        for permit in self._given:
            if permit.options.domain.is_within(domain):
                permit.may_begin = False
                permit.is_revoked = permit.is_revoked or not drains
        return names


def revoked() -> HttpError:
    """Return the answer to a call whose domain was revoked while it was open."""
    return HttpError(
        403,
        "the domain of this request was revoked while it was open; ask whoever runs the "
        "server for access",
        code="domain_revoked",
    )
