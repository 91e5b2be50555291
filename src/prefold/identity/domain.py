"""Domains and audiences: who may share KV with whom.

A domain is a place in a tree of organisations, and writes only what is its own. An
audience is a group of readers, and each piece of cached KV belongs to exactly one::

    acme/search reads   approved(public)        what everybody may read
                        approved(acme)
                        approved(acme/search)
                        own(acme/search)        the only one it writes

A request that *approves* reads and writes ``approved(its domain)`` alone: what one
approval computed never rests on what another one may withdraw.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from prefold.errors import InvalidInputError

MAX_PATH_LENGTH = 255

_SEGMENT = r"(?!\.+(?:/|\Z))[a-z0-9._-]+"
_PATH_PATTERN = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


@dataclass(frozen=True, slots=True)
class Domain:
    """A permission boundary: its KV is read by its own requests only.

    Attributes:
        path: Segments of a-z, 0-9, ``.``, ``_`` and ``-``, joined by ``/``; none
            consists of dots alone, so a path can safely become a file name.
        salt: A secret that narrows the domain to those who know it: a leaf below the
            path. It is part of equality and of no representation.
    """

    path: str
    salt: bytes | None = field(default=None, repr=False)
    #: Made once: domains are looked up far more often than they are made.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise InvalidInputError("a domain path must be a string")
        if len(self.path) > MAX_PATH_LENGTH:
            raise InvalidInputError(
                f"a domain path has at most {MAX_PATH_LENGTH} characters, "
                f"got {len(self.path)}"
            )
        if not _PATH_PATTERN.fullmatch(self.path):
            raise InvalidInputError(
                "a domain path is segments of a-z, 0-9, '.', '_' and '-' joined by '/', "
                f"got {self.path!r}"
            )
        if self.salt is not None and not isinstance(self.salt, bytes):
            raise InvalidInputError("a salt must be bytes")
        if self.salt is not None and not self.salt:
            raise InvalidInputError("a salt must not be empty; None means no salt")
        object.__setattr__(self, "_hash", hash((self.path, self.salt)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Domain({self.path!r}{'' if self.salt is None else ', salted'})"

    def ancestors(self) -> tuple[Domain, ...]:
        """Return the domains above this one, from wide to narrow, without ``PUBLIC``.

        A salted domain lies below the domain of its path.
        """
        segments = self.path.split("/")
        paths = ["/".join(segments[:depth]) for depth in range(1, len(segments))]
        if self.salt is not None:
            paths.append(self.path)
        return tuple(Domain(path) for path in paths if path != PUBLIC.path)

    def is_within(self, other: Domain) -> bool:
        """Whether this is ``other`` or lies below it; all domains lie below ``PUBLIC``.

        Nothing lies below a salted domain but itself.
        """
        if other.salt is not None:
            return self == other
        is_all = other.path in {PUBLIC.path, self.path}
        return is_all or self.path.startswith(f"{other.path}/")

    def narrowed_to(self, path: str | None = None, salt: bytes | None = None) -> Domain:
        """Return the domain at or below this one that a request asked for.

        Args:
            path: A whole path, not a relative one; None for this domain's.
            salt: Narrows it further to those who know it.

        Raises:
            InvalidInputError: It is outside this domain, or no domain at all. Below a
                salted domain there is nothing to narrow to.
        """
        asked = Domain(self.path if path is None else path, salt)
        if self.salt is not None:
            if (path is None and salt is None) or asked == self:
                return self
            raise InvalidInputError(
                f"a salted domain cannot be narrowed further; leave path and salt out to "
                f"stay in {self!r}"
            )
        # Only ``PUBLIC`` itself has everything below it by decree; by path it has not.
        if self.path != asked.path and not asked.path.startswith(f"{self.path}/"):
            raise InvalidInputError(
                f"domain {asked.path!r} is outside {self.path!r}; a request can only name "
                "its own domain or one below it"
            )
        return asked


PUBLIC = Domain("public")


class AudienceKind(Enum):
    """How an audience relates to its domain."""

    #: Requests of exactly this domain.
    OWN = "own"
    #: Requests of this domain and of all below it; of all, if it is ``PUBLIC``.
    APPROVED = "approved"
    #: The forks of one sequence that must not publish; gone with them.
    THROWAWAY = "throwaway"


@dataclass(frozen=True, slots=True)
class Audience:
    """The group of readers that a piece of cached KV belongs to.

    Attributes:
        kind: How the readers relate to the domain.
        domain: Unsalted if the kind is approved: nothing is approved for a secret.
        serial: Tells throw-away audiences of one domain apart; 0 for the others.
    """

    kind: AudienceKind
    domain: Domain
    serial: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind is AudienceKind.APPROVED and self.domain.salt is not None:
            raise InvalidInputError(f"nothing can be approved for {self.domain!r}")
        if self.serial and self.kind is not AudienceKind.THROWAWAY:
            raise InvalidInputError(
                f"only throw-away audiences have a serial, got {self.serial}"
            )
        object.__setattr__(self, "_hash", hash((self.kind, self.domain, self.serial)))

    def __hash__(self) -> int:
        return self._hash


def readable_audiences(
    domain: Domain, approved: frozenset[str] | None = None
) -> tuple[Audience, ...]:
    """Return the audiences whose KV ``domain`` may read, from wide to narrow.

    The last one is its own, the only one it writes.

    Args:
        domain: Whose request it is.
        approved: Paths of the domains whose approved prefixes it wants to read, of those
            that it may; None for all of them.
    """
    approving = [PUBLIC, *domain.ancestors()]
    if domain.salt is None and domain != PUBLIC:
        approving.append(domain)
    return (
        *(
            Audience(AudienceKind.APPROVED, above)
            for above in approving
            if approved is None or above.path in approved
        ),
        Audience(AudienceKind.OWN, domain),
    )


def approving_audiences(domain: Domain) -> tuple[Audience, ...]:
    """Return the one audience that a request which approves for ``domain`` has.

    Raises:
        InvalidInputError: The domain is salted.
    """
    return (Audience(AudienceKind.APPROVED, domain),)
