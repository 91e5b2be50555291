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
    approving_audiences,
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


@pytest.mark.parametrize(
    ("domain", "other", "expected"),
    [
        (Domain("a"), Domain("a"), True),
        (Domain("a/b"), Domain("a"), True),
        (Domain("a/b/c"), Domain("a"), True),
        (Domain("a", b"s"), Domain("a"), True),
        (Domain("a/b", b"s"), Domain("a"), True),
        (Domain("a"), PUBLIC, True),
        (Domain("a", b"s"), PUBLIC, True),
        (PUBLIC, PUBLIC, True),
        (Domain("a"), Domain("a/b"), False),
        (Domain("ab"), Domain("a"), False),
        (Domain("a"), Domain("a", b"s"), False),
        (Domain("a/b"), Domain("a", b"s"), False),
        (Domain("a", b"t"), Domain("a", b"s"), False),
        (Domain("a", b"s"), Domain("a", b"s"), True),
        (PUBLIC, Domain("a"), False),
        (PUBLIC, Domain("public", b"s"), False),
    ],
)
def test_what_lies_within_what(domain: Domain, other: Domain, *, expected: bool) -> None:
    assert domain.is_within(other) is expected


def test_within_is_reading_what_is_approved() -> None:
    paths = ["public", "a", "ab", "a/b", "a/b/c", "b"]
    domains = [Domain(path, salt) for path in paths for salt in (None, b"s")]
    for domain, other in itertools.product(domains, domains):
        if other.salt is None:
            approved = Audience(APPROVED, other)
            assert domain.is_within(other) == (approved in readable_audiences(domain))


@pytest.mark.parametrize(
    ("path", "salt", "narrowed"),
    [
        (None, None, Domain("a")),
        ("a", None, Domain("a")),
        ("a/b", None, Domain("a/b")),
        (None, b"s", Domain("a", b"s")),
        ("a/b", b"s", Domain("a/b", b"s")),
    ],
)
def test_a_request_may_narrow_its_domain(
    path: str | None, salt: bytes | None, narrowed: Domain
) -> None:
    assert Domain("a").narrowed_to(path, salt) == narrowed


@pytest.mark.parametrize("path", ["b", "ab", "public", "b/a", "a.b"])
def test_a_request_may_not_leave_its_domain(path: str) -> None:
    with pytest.raises(InvalidInputError, match="outside 'a'; a request can only name"):
        Domain("a").narrowed_to(path)


def test_a_request_may_not_widen_its_domain() -> None:
    with pytest.raises(InvalidInputError, match="outside"):
        Domain("a/b").narrowed_to("a")


def test_everything_below_public_is_not_a_way_into_other_domains() -> None:
    with pytest.raises(InvalidInputError, match="outside 'public'"):
        PUBLIC.narrowed_to("acme")
    assert PUBLIC.narrowed_to("public/x") == Domain("public/x")


@pytest.mark.parametrize("path", ["", "a//b", "a/", "a/..", "a/B"])
def test_narrowing_to_no_path_at_all_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError, match="a domain path"):
        Domain("a").narrowed_to(path)


def test_a_salted_domain_is_as_narrow_as_can_be() -> None:
    salted = Domain("a", b"s")
    assert salted.narrowed_to() == salted
    assert salted.narrowed_to("a", b"s") == salted
    for path, salt in (("a", None), (None, b"t"), ("a/b", b"s")):
        with pytest.raises(InvalidInputError, match="cannot be narrowed") as raised:
            salted.narrowed_to(path, salt)
        assert "'s'" not in str(raised.value)


def test_a_path_must_be_text() -> None:
    with pytest.raises(InvalidInputError, match="must be a string"):
        Domain(7)  # type: ignore[arg-type]


def test_only_wanted_approved_domains_are_read() -> None:
    domain = Domain("a/b")
    own = Audience(OWN, domain)
    assert readable_audiences(domain, frozenset()) == (own,)
    assert readable_audiences(domain, frozenset({"a", "b", "a/b/c"})) == (
        Audience(APPROVED, Domain("a")),
        own,
    )


def test_who_approves_has_one_audience() -> None:
    assert approving_audiences(Domain("a")) == (Audience(APPROVED, Domain("a")),)
    with pytest.raises(InvalidInputError, match="nothing can be approved"):
        approving_audiences(Domain("a", b"s"))
