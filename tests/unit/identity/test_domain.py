from __future__ import annotations

import itertools

import pytest

from prefold.errors import InvalidInputError
from prefold.identity.domain import (
    MAX_PATH_LENGTH,
    PUBLIC,
    Audience,
    AudienceKind,
    Domain,
    readable_audiences,
)

OWN, APPROVED, THROWAWAY = AudienceKind.OWN, AudienceKind.APPROVED, AudienceKind.THROWAWAY


@pytest.mark.parametrize("path", ["a", "acme/search/alice", "a.b-c_d/0", "..a", "x" * 255])
def test_valid_paths_are_accepted(path: str) -> None:
    assert Domain(path).path == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "A",
        "ä",
        "a b",
        "a\n",
        "a\0",
        ".",
        "..",
        "a/..",
        "../a",
        "a/./b",
        "x" * (MAX_PATH_LENGTH + 1),
    ],
)
def test_malformed_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="a domain path"):
        Domain(path)


def test_an_empty_salt_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="salt"):
        Domain("acme", b"")


def test_no_representation_shows_a_salt() -> None:
    domain = Domain("acme", b"canary")
    owned = Audience(OWN, domain)
    shown = [
        repr(domain),
        str(domain),
        repr(owned),
        f"{owned}",
        repr(readable_audiences(domain)),
    ]
    assert not any("canary" in text or "63616e617279" in text for text in shown)
    assert "salted" in repr(domain)
    with pytest.raises(InvalidInputError) as caught:
        Audience(APPROVED, domain)
    assert "canary" not in str(caught.value)


def test_ancestors_run_from_wide_to_narrow_without_self_and_public() -> None:
    assert (
        PUBLIC.ancestors()
        == Domain("acme").ancestors()
        == Domain("public/x").ancestors()
        == ()
    )
    assert Domain("a/b/c").ancestors() == (Domain("a"), Domain("a/b"))
    assert Domain("a/b", b"s").ancestors() == (Domain("a"), Domain("a/b"))
    assert Domain("a/public/c").ancestors() == (Domain("a"), Domain("a/public"))


@pytest.mark.parametrize(
    ("domain", "approving"),
    [
        (PUBLIC, ["public"]),
        (Domain("public", b"s"), ["public"]),
        (Domain("public/x"), ["public", "public/x"]),
        (Domain("acme"), ["public", "acme"]),
        (Domain("acme/search"), ["public", "acme", "acme/search"]),
        (Domain("acme/search", b"s"), ["public", "acme", "acme/search"]),
    ],
    ids=repr,
)
def test_a_domain_reads_what_is_approved_above_it_and_its_own(
    domain: Domain, approving: list[str]
) -> None:
    assert readable_audiences(domain) == (
        *(Audience(APPROVED, Domain(path)) for path in approving),
        Audience(OWN, domain),
    )


def test_no_domain_reads_what_another_owns() -> None:
    salts = [None, b"a", b"aa"]
    domains = [Domain(p, s) for p in ["a", "aa", "a/a", "a.a", "public"] for s in salts]
    for reader, owner in itertools.product(domains, repeat=2):
        reads = Audience(OWN, owner) in readable_audiences(reader)
        assert reads == (reader == owner)
        assert (Domain("a") in reader.ancestors()) == (
            reader.path == "a/a" or (reader.path == "a" and reader.salt is not None)
        )


def test_audiences_of_all_small_domains_are_equal_only_to_themselves() -> None:
    def make() -> list[Audience]:
        domains = [
            Domain(path, salt) for path in ["a", "aa"] for salt in [None, b"a", b"aa"]
        ]
        plain = [Audience(OWN, domain) for domain in domains]
        approved = [Audience(APPROVED, d) for d in domains if d.salt is None]
        thrown = [Audience(THROWAWAY, d, serial) for d in domains for serial in [0, 1, 2]]
        return [*plain, *approved, *thrown]

    one, other = make(), make()
    assert len(set(one)) == len(one)
    assert one == other
    assert [hash(audience) for audience in one] == [hash(audience) for audience in other]


def test_only_throwaway_audiences_have_a_serial() -> None:
    with pytest.raises(InvalidInputError, match="serial"):
        Audience(OWN, Domain("acme"), 1)
