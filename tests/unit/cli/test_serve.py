"""Options of ``prefold serve`` win over the file; what cannot be is a sentence."""

from __future__ import annotations

import socket
from dataclasses import fields
from pathlib import Path

import pytest

from prefold.cli import serve as serve_module
from prefold.cli.main import main
from prefold.cli.serve import lines_of, resolve_config
from prefold.cli.serve_options import ServeOptions
from prefold.errors import ConfigError
from prefold.server.announcement import Announcement

FILE = """
[model]
source = "file-model"
served_name = "file-name"
dtype = "bfloat16"
max_model_len = 100

[cache]
memory = "1GiB"
block_size = 32
policy = "lfu"

[server]
host = "127.0.0.2"
port = 1000
admin_port = 1001
"""


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no configuration or state of this machine take part."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("CONFIG", "KEY_FILE", "ADMIN_TOKEN_FILE", "TENANTS"):
        monkeypatch.delenv(f"PREFOLD_{name}", raising=False)


def options(**changes: object) -> ServeOptions:
    values: dict[str, object] = dict.fromkeys(each.name for each in fields(ServeOptions))
    values.update(rehash=False, as_json=False)
    return ServeOptions(**{**values, **changes})  # type: ignore[arg-type]


def file(tmp_path: Path, text: str = FILE) -> Path:
    path = tmp_path / "other.toml"
    path.write_text(text)
    return path


def test_without_options_and_file_there_are_defaults() -> None:
    config = resolve_config(options())
    assert config.model.source is None
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8000)
    assert (config.server.admin_host, config.server.admin_port) == ("127.0.0.1", 8001)


def test_the_file_is_read(tmp_path: Path) -> None:
    config = resolve_config(options(config=file(tmp_path)))
    assert config.model.source == "file-model"
    assert config.model.served_name == "file-name"
    assert (config.cache.memory, config.cache.policy) == ("1GiB", "lfu")
    assert config.server.port == 1000


def test_options_win_over_the_file(tmp_path: Path) -> None:
    config = resolve_config(
        options(
            config=file(tmp_path),
            model="m",
            served_name="n",
            dtype="float32",
            max_model_len=50,
            cache_blocks=7,
            cache_policy="lru",
            kv_dtype="int8",
            block_size=8,
            host="127.0.0.3",
            port=0,
            admin_port=0,
            threads=3,
            rehash=True,
        )
    )
    assert (config.model.source, config.model.served_name) == ("m", "n")
    assert (config.model.dtype, config.model.max_model_len) == ("float32", 50)
    assert (config.model.num_threads, config.model.rehash) == (3, True)
    # One of the two sizes replaces the other as well.
    assert (config.cache.memory, config.cache.blocks) == (None, 7)
    assert (config.cache.block_size, config.cache.policy) == (8, "lru")
    assert config.cache.kv_dtype == "int8"
    assert (config.server.host, config.server.port) == ("127.0.0.3", 0)
    assert config.server.admin_port == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104
def test_without_tenants_only_this_machine_is_served(
    host: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--host", host]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "tenants" in err


def test_with_tenants_any_address_may_be_used(tmp_path: Path) -> None:
    text = '[[tenants]]\nname = "acme"\n'
    config = resolve_config(options(config=file(tmp_path, text), host="0.0.0.0"))  # noqa: S104
    assert config.server.host == "0.0.0.0"  # noqa: S104


@pytest.mark.parametrize(
    "arguments",
    [
        ["--port", "8000", "--admin-port", "8000"],
        ["--port", "70000"],
        ["--config", "missing.toml"],
        ["--cache-memory", "lots"],
        ["--cache-memory", "1GiB", "--cache-blocks", "3"],
        ["--max-model-len", "1"],
        ["--cache-policy", "lruu"],
    ],
)
def test_bad_options_are_a_sentence(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_a_taken_port_is_a_sentence_before_the_model_is_touched(
    option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    other = {"--port": "--admin-port", "--admin-port": "--port"}[option]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "no-such-model", option, port, other, "0"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert f"port {port} of 127.0.0.1 is taken" in err.splitlines()[-1]
    assert "no-such-model" not in err


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "_NEEDED", ("fastapi", "no_such_package"))
    with pytest.raises(ConfigError, match=r"needs no_such_package; run pip install"):
        serve_module.run_serve(options())


def test_what_is_said_names_the_token_file_and_no_token(tmp_path: Path) -> None:
    what = Announcement(
        public_url="http://127.0.0.1:8000",
        admin_url="http://127.0.0.1:8001",
        model="m",
        cache_tokens=1024,
        cache_bytes=10**6,
        exactness="Exactness is promised: why.",
        token_file=tmp_path / "admin_token",
        key_file=tmp_path / "keys.json",
        num_tenants=0,
    )
    text = "\n".join(lines_of(what))
    public, page = "http://127.0.0.1:8000/v1", "http://127.0.0.1:8001/ui"
    for part in (public, page, "m", "1,024 tokens"):
        assert part in text
    assert str(tmp_path / "admin_token") in text
    assert str(tmp_path / "keys.json") not in text
    assert what.to_json()["admin_token_file"] == str(tmp_path / "admin_token")
