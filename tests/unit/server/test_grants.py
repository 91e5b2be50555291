"""What a request is granted of what it asks for: never more than its tenant has."""

from __future__ import annotations

import itertools
import math

import pytest

from prefold.cache import KEEP, Retention
from prefold.identity.domain import Domain
from prefold.server.config import LOCAL_TENANT, TenantConfig
from prefold.server.errors import HttpError
from prefold.server.grants import CacheWish, Grants

ACME = TenantConfig(name="acme")
SEARCH = TenantConfig(name="search", domain="acme/search")
LEGAL = TenantConfig(name="legal", domain="acme/law/legal")
GLOBEX = TenantConfig(name="globex", approved=("public",))
GRANTS = Grants((ACME, SEARCH, LEGAL, GLOBEX))


def refusal(tenant: TenantConfig, path: str) -> HttpError:
    with pytest.raises(HttpError) as caught:
        GRANTS.options(tenant, CacheWish(domain=path))
    assert caught.value.status == 403
    assert caught.value.code == "domain_not_allowed"
    assert caught.value.param == "cache.domain"
    return caught.value


def test_who_asks_for_nothing_gets_what_its_tenant_has() -> None:
    options = GRANTS.options(ACME, CacheWish())
    assert options.domain == Domain("acme")
    assert (options.access.read, options.access.write) == (True, True)
    assert options.access.approved is None
    assert options.tenant == "acme"
    assert GRANTS.options(LOCAL_TENANT, CacheWish()).domain == Domain("local")


@pytest.mark.parametrize(
    "path", ["acme", "acme/chat", "acme/law", "acme/searching", "acme/s"]
)
def test_a_request_narrows_to_what_lies_below_and_is_nobody_elses(path: str) -> None:
    assert GRANTS.options(ACME, CacheWish(domain=path)).domain == Domain(path)


@pytest.mark.parametrize(
    "path",
    [
        *("public", "globex", "acm", "acmes", "acmes/x", "search"),
        *("acme/search", "acme/search/x", "acme/law/legal", "acme/law/legal/a/b"),
    ],
)
def test_what_is_not_the_tenants_is_refused_whosever_it_is(path: str) -> None:
    message = refusal(ACME, path).message
    assert message == refusal(ACME, "nobodys").message
    assert "'acme'" in message
    assert "search" not in message


def test_a_nested_tenant_gets_its_own_and_not_what_is_above_or_beside() -> None:
    assert GRANTS.options(SEARCH, CacheWish(domain="acme/search/a")).domain.path
    for path in ("acme", "acme/law", "acme/law/legal", "public"):
        assert "'acme/search'" in refusal(SEARCH, path).message


def test_a_salt_is_a_leaf_below_the_domain_that_was_named() -> None:
    found = GRANTS.options(ACME, CacheWish(domain="acme/chat", salt="é")).domain
    assert found == Domain("acme/chat", salt="é".encode())
    assert GRANTS.options(ACME, CacheWish(salt="x")).domain == Domain("acme", salt=b"x")


def test_flags_only_take_away() -> None:
    for may_read, may_write, read, write in itertools.product([True, False], repeat=4):
        tenant = TenantConfig(name="acme", may_read=may_read, may_write=may_write)
        access = GRANTS.options(tenant, CacheWish(read=read, write=write)).access
        assert access.read == (may_read and read)
        assert access.write == (may_write and write)


@pytest.mark.parametrize(
    ("granted", "wished", "found"),
    [
        (None, None, None),
        (None, [], set()),
        (None, ["acme", "x"], {"acme", "x"}),
        (("public",), None, {"public"}),
        (("public", "acme"), ["acme", "acme/chat"], {"acme"}),
        (("public",), ["acme"], set()),
        ((), None, set()),
        ((), ["public"], set()),
    ],
)
def test_approved_domains_are_those_that_both_name(
    granted: tuple[str, ...] | None, wished: list[str] | None, found: set[str] | None
) -> None:
    tenant = TenantConfig(name="acme", approved=granted)
    access = GRANTS.options(tenant, CacheWish(approved=wished)).access
    assert access.approved == (None if found is None else frozenset(found))


@pytest.mark.parametrize(
    ("default", "longest", "wished", "found"),
    [
        (None, None, None, math.inf),
        (None, None, 5.0, 5.0),
        (None, 60.0, None, 60.0),
        (None, 60.0, 5.0, 5.0),
        (None, 60.0, 86_400.0, 60.0),
        (30.0, None, None, 30.0),
        # A default is no bound, and a tenant's own time wins over it.
        (30.0, None, 86_400.0, 86_400.0),
        (30.0, 60.0, None, 60.0),
        (90.0, 60.0, None, 60.0),
        (30.0, 60.0, 45.0, 45.0),
    ],
)
def test_a_time_to_live_is_bounded_by_the_tenants_alone(
    default: float | None, longest: float | None, wished: float | None, found: float
) -> None:
    tenant = TenantConfig(name="acme", ttl_s=longest)
    grants, wish = Grants((tenant,), ttl_s=default), CacheWish(ttl_s=wished)
    assert grants.options(tenant, wish).retention.ttl_s == found
    assert grants.operator_options(tenant, wish).retention.ttl_s == found


def test_how_dearly_kv_is_kept_is_the_requests_own_to_say() -> None:
    assert GRANTS.options(ACME, CacheWish()).retention == KEEP
    wish = CacheWish(priority=-7, ends_conversation=True)
    kept = GRANTS.options(ACME, wish).retention
    assert kept == Retention(priority=-7, ends_conversation=True)
    # Who is served first is another matter.
    assert GRANTS.options(ACME, wish).priority == 0


def test_an_operator_names_anything_below_and_nothing_outside() -> None:
    wish = CacheWish(domain="acme/search/x", domain_field="domain")
    assert GRANTS.operator_options(ACME, wish).domain == Domain("acme/search/x")
    for path in ("public", "globex"):
        with pytest.raises(HttpError, match="domain must be 'acme'"):
            GRANTS.operator_options(ACME, CacheWish(domain=path, domain_field="domain"))


def test_no_salt_is_shown() -> None:
    assert "canary" not in repr(CacheWish(salt="canary"))
