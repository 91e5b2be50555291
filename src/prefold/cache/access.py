"""Access: what a request may do with the cache, and whom it reads and writes for."""

from __future__ import annotations

from dataclasses import dataclass

from prefold.errors import InvalidInputError
from prefold.identity.domain import (
    Audience,
    Domain,
    approving_audiences,
    readable_audiences,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whether a request may reuse cached KV, and whether it may leave some behind.

    Attributes:
        read: Whether it reuses anything.
        write: Whether anybody can find what it computed.
        approved: Paths of the domains whose approved prefixes it reads, of those above
            it; None for all of them. Others change nothing.
        approves: Whether what it computes is to be approved for its domain: it then
            reads and writes the domain's approved prefixes and nothing else.

    Raises:
        InvalidInputError: A path is none, or a request that approves does not read and
            write.
    """

    read: bool
    write: bool
    approved: frozenset[str] | None = None
    approves: bool = False

    def __post_init__(self) -> None:
        if self.approves and not (self.read and self.write and self.approved is None):
            raise InvalidInputError(
                "a request that approves reads and writes the approved prefixes of its "
                "domain; leave read and write on and approved out"
            )
        if self.approved is None:
            return
        if not isinstance(self.approved, frozenset):
            raise InvalidInputError(
                f"approved must be a frozenset of domain paths, "
                f"got a {type(self.approved).__name__}"
            )
        for path in self.approved:
            Domain(path)

    def audiences(self, domain: Domain) -> tuple[Audience, ...]:
        """Return whose KV a request of ``domain`` reads, wide to narrow; the last, writes.

        The one place where this is decided.

        Raises:
            InvalidInputError: It approves, and the domain is salted.
        """
        if self.approves:
            return approving_audiences(domain)
        return readable_audiences(domain, self.approved)


READ_WRITE = Access(read=True, write=True)
NO_CACHE = Access(read=False, write=False)
APPROVING = Access(read=True, write=True, approves=True)
