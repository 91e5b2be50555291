from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from prefold.cli.main import main
from prefold.server.keys import KeyFile
from support.processes import run_python

TENANTS = '[[tenants]]\nname = "acme"\n[[tenants]]\nname = "globex"\n'


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, with nothing set that decides about places."""
    for name in ("PREFOLD_CONFIG", "PREFOLD_KEY_FILE", "PREFOLD_TENANTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path / "state" / "prefold" / "api_keys.json"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run_command(*arguments: str) -> str:
        assert main(["keys", *arguments]) == 0
        return capsys.readouterr().out

    return run_command


def _new(run: Callable[..., str], *arguments: str) -> str:
    return run("new", *arguments).strip()


def test_a_key_is_made_shown_and_revoked(
    run: Callable[..., str], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("prefold.toml").write_text(TENANTS, encoding="utf-8")
    text = _new(run, "acme", "--label", "a laptop")
    entry = KeyFile(state).find(text)
    assert entry is not None
    assert (entry.tenant, entry.label, entry.expires_at) == ("acme", "a laptop", None)
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    listed = run("list")
    assert listed.splitlines()[0].split() == ["ID", "TENANT", "CREATED", "EXPIRES", "LABEL"]
    assert entry.public_id in listed
    assert "a laptop" in listed
    assert text not in listed
    assert entry.digest not in listed
    assert entry.public_id in run("revoke", entry.public_id)
    assert KeyFile(state).find(text) is None
    assert run("list") == ""
    assert main(["keys", "revoke", entry.public_id]) == 2
    assert capsys.readouterr().err.startswith("Error: there is no key")


def test_only_the_key_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "acme"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert out.startswith("pf_")
    assert "only time the key is shown" in err
    assert "No tenants are configured here" in err
    assert out.strip() not in err


def test_json_is_one_object(run: Callable[..., str]) -> None:
    made = json.loads(run("new", "acme", "--label", "é", "--expires-in", "90d", "--json"))
    assert made.keys() == {"key", "id", "tenant", "created", "expires", "expired", "label"}
    assert (made["tenant"], made["label"], made["expired"]) == ("acme", "é", False)
    assert made["created"] < made["expires"]
    listed = json.loads(run("list", "--json"))
    del made["key"]
    assert listed["keys"] == [made]
    assert json.loads(run("revoke", made["id"], "--json")) == {"revoked": made}
    assert json.loads(run("list", "--json"))["keys"] == []


def test_one_tenants_keys(
    run: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    _new(run, "acme"), _new(run, "globex")
    [key] = json.loads(run("list", "--tenant", "globex", "--json"))["keys"]
    assert key["tenant"] == "globex"
    assert main(["keys", "list", "--tenant", "nobody"]) == 0
    assert "There are no keys of tenant 'nobody'" in capsys.readouterr().err


def test_an_expired_key_is_shown_as_such(run: Callable[..., str], state: Path) -> None:
    KeyFile(state, now=lambda: 1000.0).create("acme", expires_at=2000)
    assert "1970-01-01T00:16:40Z  expired" in run("list")
    [key] = json.loads(run("list", "--json"))["keys"]
    assert (key["expired"], key["expires"]) == (True, "1970-01-01T00:33:20Z")


def test_a_whole_key_can_be_revoked(run: Callable[..., str], state: Path) -> None:
    text = _new(run, "acme")
    secret = text.split("_")[2]
    assert secret not in run("revoke", text)
    assert KeyFile(state).entries() == ()


def test_where_the_keys_are(
    run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    def made_in(path: Path, *arguments: str) -> bool:
        text = _new(run, "acme", *arguments)
        return KeyFile(path).find(text) is not None

    configured, named = tmp_path / "configured.json", tmp_path / "named.json"
    environment = tmp_path / "environment.json"
    assert made_in(state)
    config = tmp_path / "other.toml"
    text = f'{TENANTS}[server]\nkey_file = "configured.json"\n'
    config.write_text(text, encoding="utf-8")
    assert made_in(configured, "--config", str(config))
    monkeypatch.setenv("PREFOLD_CONFIG", str(config))
    assert made_in(configured)
    monkeypatch.setenv("PREFOLD_KEY_FILE", str(environment))
    assert made_in(environment)
    assert made_in(named, "--key-file", str(named))


def test_a_tenant_that_is_not_configured_gets_no_key(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    Path("prefold.toml").write_text(TENANTS, encoding="utf-8")
    assert main(["keys", "new", "acne"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no tenant 'acne' in the configuration; did you mean acme?" in err
    assert not state.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new"], "Missing argument"),
        (["new", "a b"], "a tenant's name is"),
        (["new", "acme", "--expires-in", "soon"], "--expires-in must be"),
        (["new", "acme", "--expires-in", "0d"], "--expires-in must be"),
        (["new", "acme", "--expires-in", "-1d"], "--expires-in must be"),
        (["new", "acme", "--expires-in", "99999w"], None),
        (["new", "acme", "--expires-in", "999999w"], "--expires-in must be"),
        (["new", "acme", "--label", ""], "a label is"),
        (["new", "acme", "--config", "/nowhere.toml"], "cannot read the configuration"),
        (["new", "acme", "--key-file", "/proc/nowhere/k"], "cannot write the key file"),
        (["revoke"], "Missing argument"),
        (["revoke", "canary"], "16 hexadecimal digits"),
        (["revoke", "0" * 16], "there is no key 0000000000000000"),
        (["lost"], "lost"),
    ],
)
def test_bad_usage_is_one_sentence(
    arguments: list[str], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if words is None:
        assert main(["keys", *arguments]) == 0
        return
    assert main(["keys", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert "canary" not in err


def test_a_damaged_file_is_one_sentence(
    capsys: pytest.CaptureFixture[str], state: Path
) -> None:
    state.parent.mkdir(parents=True)
    state.write_bytes(b"{")
    state.chmod(0o600)
    for arguments in (["new", "acme"], ["list"], ["revoke", "0" * 16]):
        assert main(["keys", *arguments]) == 2
        assert "is damaged or of another release" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["new", "--help"]])
def test_help_is_no_error(arguments: list[str], run: Callable[..., str]) -> None:
    assert "Usage: prefold keys" in run(*arguments)


_RUN_MAIN = """
import runpy, sys

sys.modules.update(dict.fromkeys(["torch", "transformers", "fastapi", "starlette"]))
sys.argv[0] = "prefold"
runpy.run_module("prefold.cli.main", run_name="__main__")
"""


def test_keys_need_neither_torch_nor_a_web_framework() -> None:
    text = run_python(_RUN_MAIN, "keys", "new", "acme").strip()
    listed = run_python(_RUN_MAIN, "keys", "list")
    assert text.split("_")[1] in listed
    run_python(_RUN_MAIN, "keys", "revoke", text)
    assert run_python(_RUN_MAIN, "keys", "list") == ""
