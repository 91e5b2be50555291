import pytest

from prefold.cache import APPROVING, READ_WRITE, Access
from prefold.errors import InvalidInputError
from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain

TEAM = Domain("a/b")


def approved(domain: Domain) -> Audience:
    return Audience(AudienceKind.APPROVED, domain)


def test_a_request_reads_what_is_approved_above_it_and_writes_its_own() -> None:
    assert READ_WRITE.audiences(TEAM) == (
        approved(PUBLIC),
        approved(Domain("a")),
        approved(TEAM),
        Audience(AudienceKind.OWN, TEAM),
    )


def test_a_request_may_want_less() -> None:
    access = Access(read=True, write=True, approved=frozenset({"public"}))
    own = Audience(AudienceKind.OWN, TEAM)
    assert access.audiences(TEAM) == (approved(PUBLIC), own)


def test_a_request_never_gets_more_than_its_domain_may() -> None:
    access = Access(read=True, write=True, approved=frozenset({"c", "a/b/d"}))
    assert access.audiences(TEAM) == (Audience(AudienceKind.OWN, TEAM),)


def test_who_approves_reads_nothing_that_could_be_taken_away() -> None:
    assert APPROVING.audiences(TEAM) == (approved(TEAM),)


def test_what_is_approved_must_be_paths() -> None:
    with pytest.raises(InvalidInputError, match="a domain path"):
        Access(read=True, write=True, approved=frozenset({"a//b"}))
    with pytest.raises(InvalidInputError, match="a frozenset of domain paths, got a list"):
        Access(read=True, write=True, approved=["a"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"read": False}, {"write": False}, {"approved": frozenset({"a"})}]
)
def test_who_approves_reads_and_writes(change: dict[str, object]) -> None:
    arguments = {"read": True, "write": True, "approves": True} | change
    with pytest.raises(InvalidInputError, match="a request that approves"):
        Access(**arguments)  # type: ignore[arg-type]
