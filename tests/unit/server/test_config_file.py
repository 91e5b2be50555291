from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from prefold.engine.config import SchedulerConfig
from prefold.errors import ConfigError
from prefold.server.config import (
    CacheConfig,
    ModelConfig,
    PrefoldConfig,
    ServerConfig,
    TenantConfig,
)
from prefold.server.config_file import find_config, load_config

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prefold.toml"


def _load(
    path: Path, text: str, environment: dict[str, str] | None = None
) -> PrefoldConfig:
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment or {})


def test_no_file_and_an_empty_one_are_all_defaults(path: Path) -> None:
    assert load_config(None, {}) == PrefoldConfig()
    assert _load(path, "") == PrefoldConfig()
    assert _load(path, "[server]\n[model]\n") == PrefoldConfig()


def test_every_section_becomes_its_class(path: Path) -> None:
    config = _load(
        path,
        """
        [model]
        source = "some/model"
        served_name = "chat"
        dtype = "bfloat16"
        max_model_len = 4096
        rehash = true
        [cache]
        memory = "4GiB"
        block_size = 32
        policy = "lfu"
        ttl_s = 3600
        max_pinned = 0.5
        ranks_across = true
        [engine]
        max_step_tokens = 256
        max_running = 8
        [server]
        host = "0.0.0.0"
        port = 9000
        drain_s = 5
        request_timeout_s = 2.5
        max_queued = 10
        allow_prompt_text = true
        [[tenants]]
        name = "acme"
        tokens_per_minute = 60_000
        [[tenants]]
        name = "globex"
        domain = "globex/chat"
        max_concurrent = 4
        queue_share = 0.25
        may_read = true
        may_write = false
        approved = ["public", "globex"]
        cache_reserved = 0.25
        cache_max = 1
        ttl_s = 90.5
        """,
    )
    assert config == PrefoldConfig(
        model=ModelConfig(
            source="some/model",
            served_name="chat",
            dtype="bfloat16",
            max_model_len=4096,
            rehash=True,
        ),
        cache=CacheConfig(
            memory="4GiB",
            block_size=32,
            policy="lfu",
            ttl_s=3600,
            max_pinned=0.5,
            ranks_across=True,
        ),
        engine=SchedulerConfig(max_step_tokens=256, max_running=8, max_queued=10),
        server=ServerConfig(
            host="0.0.0.0",  # noqa: S104 -- with tenants
            port=9000,
            drain_s=5,
            request_timeout_s=2.5,
            max_queued=10,
            allow_prompt_text=True,
        ),
        tenants=(
            TenantConfig(name="acme", tokens_per_minute=60_000),
            TenantConfig(
                name="globex",
                domain="globex/chat",
                max_concurrent=4,
                queue_share=0.25,
                may_write=False,
                approved=("public", "globex"),
                cache_reserved=0.25,
                cache_max=1,
                ttl_s=90.5,
            ),
        ),
    )


def test_paths_are_relative_to_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = '[server]\nkey_file = "keys/k.json"\nadmin_token_file = "~/token"\n'
    server = _load(path, text).server
    assert server.key_file == path.parent / "keys" / "k.json"
    assert server.admin_token_file == Path("/home/me/token")
    assert _load(path, '[server]\nkey_file = "/k"').server.key_file == Path("/k")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sever]", "there is no section [sever]; did you mean [server]?"),
        ("[tenant]", "there is no section [tenant]; did you mean [[tenants]]?"),
        ("[[qqqq]]", "there is no section [qqqq]; there is [model], [cache]"),
        ("port = 1", "port stands outside of any section; it belongs below [server]"),
        ("prot = 1", "prot stands outside of any section; did you mean port?"),
        ("[server]\nprot = 1", "[server] has no setting prot; did you mean port?"),
        ("[server]\nPORT = 1", "[server] has no setting PORT; did you mean port?"),
        ("[model]\nmax_model_length = 9", "did you mean max_model_len?"),
        ("[cache]\ndtype = ''", "[cache] has no setting dtype; it belongs below [model]"),
        ("[engine]\nmax_queued = 9", "max_queued; it belongs below [server]"),
        ("[cache]\nqqqq = 1", "there is memory, blocks, block_size, kv_dtype"),
        (
            '[[tenants]]\nname = "a"\nmax_concurent = 1',
            "[[tenants]] number 1 has no setting max_concurent; did you mean",
        ),
        ('[[tenants]]\nname = "a"\nmay_raed = true', "did you mean may_read?"),
        ('[[tenants]]\nname = "a"\nis_cached = true', "has no setting is_cached"),
        ('[[tenants]]\nname = "a"\naproved = []', "did you mean approved?"),
        ('[[tenants]]\nname = "a"\ncache_reserve = 0.1', "did you mean cache_reserved?"),
        ("[cache]\nttl = 5", "[cache] has no setting ttl; did you mean ttl_s?"),
        ("[server]\nttl_s = 5", "ttl_s; it belongs below [cache]"),
        ("[cache]\npolicy = 'lfuu'", "[cache] there is no eviction policy 'lfuu'; did you"),
        (
            '[[tenants]]\nname = "acme"\napproved = ["public", "acne"]',
            "approved names 'acne', whose approved prefixes no request of 'acme' can read;",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known(
    path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(path, text)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nport = '1'", "[server] port must be a whole number, got a text"),
        ("[server]\nport = 1.0", "[server] port must be a whole number, got a number"),
        ("[server]\nport = true", "[server] port must be a whole number, got true or"),
        ("[server]\nhost = 1", "[server] host must be a text in quotes, got a whole"),
        ("[server]\nhost = ['a']", "[server] host must be a text in quotes, got a list"),
        ("[server]\nhost = {}", "[server] host must be a text in quotes, got a table"),
        ("[server]\ndrain_s = 'x'", "[server] drain_s must be a number, got a text"),
        ("[server]\nkey_file = 3", "[server] key_file must be a path in quotes"),
        ("[server]\nkey_file = ''", "[server] key_file must be the path of a file"),
        ('[server]\nkey_file = "\\u0000"', "[server] key_file must be the path of a"),
        ("[server]\nkey_file = '~nobody-here/x'", "home directory of nobody"),
        ("[server]\nallow_prompt_text = 1", "must be true or false, got a whole number"),
        ("[server]\nport = 2020-01-01", "must be a whole number, got a date or time"),
        ("[server]\nport = 99999999999999999999", "[server] port must be a smaller"),
        ("[server]\nport = 70000", "[server] port must be a whole number from 0"),
        ("[server]\nport = 8001", "two planes need two ports"),
        ("[cache]\nmemory = 1.5", "memory must be a text in quotes or a whole number"),
        ("[cache]\nmemory = 'x'", "[cache] 'x' is no memory size"),
        ("[cache]\npolicy = 3", "[cache] policy must be a text in quotes, got a whole"),
        ("[cache]\nttl_s = '1h'", "[cache] ttl_s must be a number, got a text"),
        ("[cache]\nttl_s = inf", "[cache] ttl_s must be a number of seconds above 0"),
        ("[cache]\nmax_pinned = 0.9", "[cache] max_pinned must be from 0 to 0.8, got 0.9"),
        ("[cache]\nranks_across = 1", "[cache] ranks_across must be true or false, got"),
        ("[[tenants]]\nname = 'a'\ncache_max = 2", "cache_max must be from 0 to 1, got 2"),
        (
            "[[tenants]]\nname = 'a'\ncache_reserved = 0.5\ncache_max = 0.1",
            "cache_reserved, 0.5, is above cache_max, 0.1; lower the one or raise",
        ),
        ("[[tenants]]\nname = 'a'\nttl_s = 0", "tenant 'a': ttl_s must be a number of"),
        (
            "[[tenants]]\nname='a'\ncache_reserved=0.5\n[[tenants]]\nname='b'\ncache_reserved=0.4",
            "the tenants' cache_reserved do not fit: 90% of the cache is reserved, and at",
        ),
        ("[engine]\nmax_running = 0", "[engine] max_running must be"),
        ("[engine]\nmax_running = 512", "[engine] max_step_tokens (512) must be larger"),
        ("server = 3", "server stands"),
        ("[[server]]", "[server] must be one section, got a list"),
        ("[tenants]\nname = 'a'", "tenants are written as [[tenants]]"),
        ("tenants = 'a'", "tenants are written as [[tenants]]"),
        ("[[tenants]]\ndomain = 'a'", "[[tenants]] number 1 has no name"),
        ("[[tenants]]\nname = 'a'\n[[tenants]]\nname = 3", "number 2 name must be a text"),
        ("[[tenants]]\nname = ''", "[[tenants]] number 1 a tenant's name is"),
        ("[[tenants]]\nname = 'a'\ndomain = ''", "domain is empty"),
        ("[[tenants]]\nname = 'a'\napproved = 'a'", "approved must be a list of texts"),
        ("[[tenants]]\nname = 'a'\napproved = [1]", "approved must be a list of texts"),
        ("[[tenants]]\nname = 'a'\napproved = ['a//b']", "tenant 'a': a domain path"),
        ("[[tenants]]\nname = 'a'\nmay_read = 1", "may_read must be true or false"),
        ("[[tenants]]\nname = 'a'\ndomain = '../b'", "tenant 'a': a domain path"),
        ("[[tenants]]\nname = 'a'\n" * 2, "two tenants named 'a'"),
        (
            "[[tenants]]\nname = 'a'\n[[tenants]]\nname = 'b'\ndomain = 'a'",
            "both have the domain 'a'",
        ),
        ("[server]\nhost = '0.0.0.0'", "without [[tenants]] nobody needs a key"),
    ],
)
def test_wrong_values_are_a_sentence_that_names_the_place(
    path: Path, text: str, words: str
) -> None:
    if text == "server = 3":  # TOML's own way to write a section as a value
        words = "[server] must be one section, got a whole number"
    with pytest.raises(ConfigError) as caught:
        _load(path, text)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert len(message) < len(str(path)) + 300


@pytest.mark.parametrize(
    "content",
    [
        b"[server",
        b"[server]\nport = 1\nport = 2",
        b"[server]\nport = 0x",
        b"[server]\nport = " + b"9" * 5000,
        b"x = " + b"[" * 20_000,
        b"\xff\xfe",
        b"#" * 2**21,
    ],
)
def test_what_is_no_toml_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        load_config(path, {})
    assert len(str(caught.value)) < len(str(path)) + 200


def test_a_file_that_cannot_be_read_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        load_config(path, {})
    path.mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*directory"):
        load_config(path, {})


def test_the_environment_wins_over_the_file(path: Path) -> None:
    text = """
    [server]
    key_file = "k"
    admin_token_file = "t"
    [[tenants]]
    name = "acme"
    """
    environment = {
        "PREFOLD_KEY_FILE": "/e/keys",
        "PREFOLD_ADMIN_TOKEN_FILE": "/e/token",
        "PREFOLD_TENANTS": '[{"name": "globex", "max_concurrent": 2}]',
    }
    config = _load(path, text, environment)
    assert config.server.key_file == Path("/e/keys")
    assert config.server.admin_token_file == Path("/e/token")
    assert config.tenants == (TenantConfig(name="globex", max_concurrent=2),)
    without = _load(path, text, dict.fromkeys(environment, ""))
    assert without.server.key_file == path.parent / "k"
    assert without.tenants == (TenantConfig(name="acme"),)


def test_a_list_of_the_environment_is_one(path: Path) -> None:
    environment = {"PREFOLD_TENANTS": '[{"name": "acme", "approved": ["public"]}]'}
    [tenant] = _load(path, "", environment).tenants
    assert tenant.approved == ("public",)


def test_tenants_of_the_environment_let_the_server_be_reached(path: Path) -> None:
    environment = {"PREFOLD_TENANTS": '[{"name": "acme", "tokens_per_minute": null}]'}
    config = _load(path, "[server]\nhost = '::'", environment)
    assert config.tenants == (TenantConfig(name="acme"),)
    assert load_config(None, environment).tenants == config.tenants


@pytest.mark.parametrize(
    "text", ["acme", "{}", "[1]", '["acme"]', "[" * 100_000, '{"name": "acme"}', "null"]
)
def test_tenants_of_the_environment_that_are_no_list_of_objects(text: str) -> None:
    with pytest.raises(ConfigError, match="PREFOLD_TENANTS must be a JSON array"):
        load_config(None, {"PREFOLD_TENANTS": text})


def test_a_wrong_tenant_of_the_environment_names_it() -> None:
    with pytest.raises(ConfigError, match=r"^PREFOLD_TENANTS: .*did you mean domain\?"):
        load_config(None, {"PREFOLD_TENANTS": '[{"name": "a", "domian": "b"}]'})


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named, other = tmp_path / "named.toml", tmp_path / "other.toml"
    assert find_config(None, {}) is None
    (tmp_path / "prefold.toml").touch()
    assert find_config(None, {}) == Path("prefold.toml")
    assert find_config(None, {"PREFOLD_CONFIG": str(other)}) == other
    assert find_config(None, {"PREFOLD_CONFIG": ""}) == Path("prefold.toml")
    assert find_config(named, {"PREFOLD_CONFIG": str(other)}) == named


# -- the page about it -----------------------------------------------------------------


def test_the_example_of_the_documentation_works(path: Path) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    [example] = re.findall(r"```toml\n(.*?)```", document, re.DOTALL)
    config = _load(path, example)
    assert len(config.tenants) == 2


@pytest.mark.parametrize(
    ("section", "described"),
    [
        ("[model]", ModelConfig),
        ("[cache]", CacheConfig),
        ("[engine]", SchedulerConfig),
        ("[server]", ServerConfig),
        ("[[tenants]]", TenantConfig),
    ],
)
def test_the_documentation_has_every_setting_with_its_default(
    section: str, described: type
) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    start = document.index(f"## `{section}`")
    end = document.find("\n## ", start)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", document[start:end], re.MULTILINE))
    settings = {
        setting.name: setting.default
        for setting in dataclasses.fields(described)
        if (section, setting.name) != ("[engine]", "max_queued")
    }
    assert rows.keys() == settings.keys()
    for name, default in settings.items():
        if isinstance(default, int | float) or (isinstance(default, str) and default):
            assert rows[name] == f"`{_written(default)}`", name


def _written(default: float | str) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, str):
        return f'"{default}"'
    return f"{default:_}" if default >= 10_000 else str(default)


def test_adapters_are_read_by_name_below_the_file(path: Path) -> None:
    config = _load(path, '[adapters]\none = "a/one"\n"acme/two.1" = "/b"\n')
    wanted = {"one": path.parent / "a" / "one", "acme/two.1": Path("/b")}
    assert config.adapters == wanted


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[[adapters]]\n", "one section"),
        ("[adapters]\none = 1\n", "a path in quotes"),
        ('[adapters]\none.two = "x"\n', "dots in quotes"),
        ('[adapters]\n"a b" = "x"\n', "an adapter's name"),
        ('[adapters]\none = ""\n', "path"),
        ('[[tenants]]\nname = "acme"\nadapters = ["a b"]\n', "an adapter's name"),
        ('[[tenants]]\nname = "acme"\nadapters = "one"\n', "a list of texts"),
    ],
)
def test_senseless_adapters_are_refused(path: Path, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        _load(path, text)
