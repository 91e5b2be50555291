from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from prefold.cache import NO_QUOTAS, QuotaSettings, Share
from prefold.errors import ConfigError
from prefold.identity.domain import Domain
from prefold.server.config import (
    LOCAL_TENANT,
    CacheConfig,
    ModelConfig,
    PrefoldConfig,
    ServerConfig,
    TenantConfig,
    is_loopback,
)


def test_defaults_serve_this_machine_only() -> None:
    config = PrefoldConfig()
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8000)
    assert (config.server.admin_host, config.server.admin_port) == ("127.0.0.1", 8001)
    assert config.tenants == ()
    assert config.engine.max_queued == config.server.max_queued
    assert not config.server.allow_prompt_text


def test_the_local_tenant_has_the_local_domain() -> None:
    assert (LOCAL_TENANT.name, LOCAL_TENANT.domain) == ("default", "local")


def test_a_domain_left_out_is_the_name() -> None:
    assert TenantConfig(name="acme").domain == "acme"
    assert TenantConfig(name="acme", domain="acme/search").domain == "acme/search"
    renamed = dataclasses.replace(TenantConfig(name="acme"), max_concurrent=2)
    assert renamed.domain == "acme"


@pytest.mark.parametrize("name", ["a", "A-1", "acme.search_2", "x" * 64])
def test_names_of_tenants(name: str) -> None:
    assert TenantConfig(name=name, domain="d").name == name


@pytest.mark.parametrize("name", ["", "-a", ".", "a b", "a/b", "é", "a\n", "x" * 65, 7])
def test_names_that_no_tenant_can_have(name: object) -> None:
    with pytest.raises(ConfigError, match="a tenant's name is"):
        TenantConfig(name=name, domain="d")  # type: ignore[arg-type]


@pytest.mark.parametrize("domain", ["A", "a//b", "/a", "a/", "../a", "a b", "é", "x" * 256])
def test_domains_that_no_tenant_can_have(domain: str) -> None:
    with pytest.raises(ConfigError, match="tenant 'acme': a domain path"):
        TenantConfig(name="acme", domain=domain)


def test_a_name_that_is_no_domain_needs_one_beside_it() -> None:
    with pytest.raises(ConfigError, match="tenant 'Acme': a domain path"):
        TenantConfig(name="Acme")


def test_nobody_owns_what_everybody_reads() -> None:
    with pytest.raises(ConfigError, match="'public' is everybody's"):
        TenantConfig(name="public")


@pytest.mark.parametrize(
    "approved",
    [(), ("public",), ("public", "acme", "acme/search"), ("acme/search/a",), ("acme",) * 2],
)
def test_domains_whose_approved_prefixes_a_tenant_may_read(
    approved: tuple[str, ...],
) -> None:
    tenant = TenantConfig(name="t", domain="acme/search", approved=approved)
    assert tenant.approved == approved


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("acne", "did you mean acme"),
        ("pubic", "did you mean public"),
        ("acme/serch", "did you mean acme/search"),
        ("acme/chat", "did you mean acme"),
        ("zzzz", "there is public, acme, acme/search"),
    ],
)
def test_domains_that_no_request_of_a_tenant_reads(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^tenant 't': approved names .*{words}"):
        TenantConfig(name="t", domain="acme/search", approved=(path,))


@pytest.mark.parametrize("path", ["", "a//b", "/a", "a/", "..", "A", "a b"])
def test_approved_paths_that_are_none(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^tenant 't': a domain path"):
        TenantConfig(name="t", approved=(path,))


@pytest.mark.parametrize("name", ["may_read", "may_write"])
def test_flags_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^tenant 't': {name} must be true or false"):
        TenantConfig(name="t", **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"max_concurrent": 0},
        {"max_concurrent": True},
        {"max_concurrent": 1.5},
        {"tokens_per_minute": 0},
        {"tokens_per_minute": -5},
        {"tokens_per_minute": 10**400},
        {"queue_share": 0},
        {"queue_share": -0.5},
        {"queue_share": 1.01},
        {"queue_share": float("nan")},
        {"queue_share": True},
        {"cache_reserved": -0.1},
        {"cache_reserved": 1.1},
        {"cache_reserved": float("nan")},
        {"cache_max": 1.1},
        {"cache_max": True},
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": True},
        {"ttl_s": float("inf")},
        {"ttl_s": float("nan")},
        {"ttl_s": 31_536_001},
    ],
)
def test_senseless_limits_of_a_tenant(values: Mapping[str, float]) -> None:
    [name] = values
    with pytest.raises(ConfigError, match=f"tenant 'acme': {name} must be"):
        TenantConfig(name="acme", **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"port": -1},
        {"port": 65_536},
        {"port": True},
        {"admin_port": 10**30},
        {"max_body_bytes": 0},
        {"max_depth": 0},
        {"max_depth": 100_000},
        {"max_n": 0},
        {"max_n": 16_384},
        {"drain_s": -1},
        {"drain_s": float("inf")},
        {"drain_s": float("nan")},
        {"drain_s": 10**400},
        {"request_timeout_s": 0},
        {"request_timeout_s": float("nan")},
        {"max_queued": 0},
        {"host": " "},
        {"admin_host": ""},
    ],
)
def test_senseless_settings_of_the_server(values: Mapping[str, object]) -> None:
    [name] = values
    with pytest.raises(ConfigError, match=f"{name} must be") as caught:
        ServerConfig(**values)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 120


def test_the_planes_need_two_ports() -> None:
    with pytest.raises(ConfigError, match="two planes need two ports"):
        ServerConfig(port=9000, admin_port=9000)
    assert ServerConfig(port=0, admin_port=0).port == 0


@pytest.mark.parametrize(
    "values",
    [
        {"source": ""},
        {"served_name": "  "},
        {"max_model_len": 1},
        {"num_threads": 0},
        {"position_offset": -1},
    ],
)
def test_senseless_settings_of_the_model(values: Mapping[str, object]) -> None:
    [name] = values
    with pytest.raises(ConfigError, match=f"{name} must"):
        ModelConfig(**values)  # type: ignore[arg-type]


def test_senseless_settings_of_the_cache() -> None:
    with pytest.raises(ConfigError, match="not both"):
        CacheConfig(memory="1GiB", blocks=4)
    with pytest.raises(ConfigError, match="no memory size"):
        CacheConfig(memory="plenty")
    with pytest.raises(ConfigError, match="blocks must be"):
        CacheConfig(blocks=0)
    with pytest.raises(ConfigError, match="block_size must be"):
        CacheConfig(block_size=0)
    with pytest.raises(ConfigError, match="policy 'lro'; did you mean 'lru'"):
        CacheConfig(policy="lro")
    with pytest.raises(ConfigError, match="ttl_s must be a number of seconds above 0"):
        CacheConfig(ttl_s=0)
    for share in (-0.1, 0.81, float("nan"), True):
        with pytest.raises(ConfigError, match=r"max_pinned must be from 0 to 0\.8"):
            CacheConfig(max_pinned=share)
    with pytest.raises(ConfigError, match="ranks_across must be true or false"):
        CacheConfig(ranks_across=1)  # type: ignore[arg-type]


def test_a_tenant_reserves_no_more_than_it_may_have() -> None:
    with pytest.raises(ConfigError, match=r"^tenant 'a': cache_reserved, 0\.5, is above"):
        TenantConfig(name="a", cache_reserved=0.5, cache_max=0.4)
    assert TenantConfig(name="a", cache_reserved=0.4, cache_max=0.4).cache_max == 0.4
    assert TenantConfig(name="a", cache_max=0).cache_reserved == 0


def test_tenants_reserve_no_more_together_than_leaves_room() -> None:
    one = TenantConfig(name="a", cache_reserved=0.3)
    half = TenantConfig(name="b", cache_reserved=0.5)
    assert PrefoldConfig(tenants=(one, half)).tenants == (one, half)
    more = TenantConfig(name="b", cache_reserved=0.6)
    with pytest.raises(ConfigError, match=r"do not fit: 90% .* at most 80%"):
        PrefoldConfig(tenants=(one, more))


def test_every_tenant_has_a_share_of_its_own() -> None:
    config = PrefoldConfig(
        cache=CacheConfig(max_pinned=0.25, ranks_across=True),
        tenants=(
            TenantConfig(name="a", domain="x/a", cache_reserved=0.2, cache_max=0.6),
            TenantConfig(name="b"),
        ),
    )
    assert config.quotas() == QuotaSettings(
        shares=(
            Share(domain=Domain("x/a"), reserved=0.2, maximum=0.6),
            Share(domain=Domain("b"), reserved=0.0, maximum=1.0),
        ),
        max_pinned=0.25,
        ranks_across=True,
    )
    assert PrefoldConfig().quotas() == NO_QUOTAS


def test_tenants_share_neither_name_nor_domain() -> None:
    acme = TenantConfig(name="acme")
    with pytest.raises(ConfigError, match="two tenants named 'acme'"):
        PrefoldConfig(tenants=(acme, TenantConfig(name="acme", domain="b")))
    with pytest.raises(ConfigError, match="'acme' and 'b' both have the domain 'acme'"):
        PrefoldConfig(tenants=(acme, TenantConfig(name="b", domain="acme")))


def test_a_tenant_may_stand_below_another() -> None:
    tenants = (
        TenantConfig(name="acme"),
        TenantConfig(name="search", domain="acme/search"),
    )
    assert PrefoldConfig(tenants=tenants).tenants == tenants


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.3", "example.org", "128.0.0.1"])  # noqa: S104 -- what is refused
def test_without_tenants_no_other_machine_gets_in(host: str) -> None:
    server = ServerConfig(host=host)
    with pytest.raises(ConfigError, match=r"host must be 127\.0\.0\.1"):
        PrefoldConfig(server=server)
    tenants = (TenantConfig(name="acme"),)
    assert PrefoldConfig(server=server, tenants=tenants).tenants == tenants


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_addresses_of_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert PrefoldConfig(server=ServerConfig(host=host)).tenants == ()
