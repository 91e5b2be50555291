"""The commands for adapters: what they ask the server, and what they refuse to ask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from prefold.cli.admin_options import AdminAction
from prefold.cli.app import run
from prefold.cli.main import main
from prefold.cli.serve import resolve_config
from prefold.cli.serve_options import ServeOptions
from prefold.errors import ConfigError

ROW = {
    "name": "one",
    "digest": "ab" * 32,
    "path": "/a/one",
    "rank": 8,
    "num_layers": 4,
    "num_bytes": 1024,
    "is_exact": True,
    "is_activated": False,
    "open_requests": 2,
    "is_leaving": False,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[AdminAction, str, object]]:
    """Answer in the server's place; return what was asked."""
    calls: list[tuple[AdminAction, str, object]] = []

    def ask(
        _target: object, action: AdminAction, path: str, fields: Mapping[str, object]
    ) -> dict[str, object]:
        calls.append((action, path, dict(fields)))
        return {"adapters": [ROW]} if action is AdminAction.ADAPTERS else dict(ROW)

    monkeypatch.setattr("prefold.cli.admin.ask", ask)
    return calls


def test_each_command_asks_for_one_thing(
    asked: list[tuple[AdminAction, str, object]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["adapters", "list"]) == 0
    assert "one" in capsys.readouterr().out
    assert run(["adapters", "load", "acme/one", "here"]) == 0
    assert run(["adapters", "load", "one", "/there", "--reload", "--json"]) == 0
    assert run(["adapters", "unload", "acme/one"]) == 0
    here = str(tmp_path / "here")
    assert asked == [
        (AdminAction.ADAPTERS, "", {}),
        (AdminAction.LOAD_ADAPTER, "", {"name": "acme/one", "path": here, "reload": False}),
        (AdminAction.LOAD_ADAPTER, "", {"name": "one", "path": "/there", "reload": True}),
        (AdminAction.UNLOAD_ADAPTER, "acme/one", {}),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["adapters", "unload", "../model"],
        ["adapters", "load", "a b", "x"],
        ["adapters", "load", "one"],
        ["adapters", "lost"],
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(
    arguments: list[str],
    asked: list[tuple[AdminAction, str, object]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert asked == []


def options(*adapters: str) -> ServeOptions:
    fields = dict.fromkeys(ServeOptions.__slots__)
    return ServeOptions(**{**fields, "adapters": adapters})  # type: ignore[arg-type]


def test_adapters_of_the_command_line_win_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prefold.toml").write_text('[adapters]\none = "a"\ntwo = "b"\n')
    config = resolve_config(options("two=c=d", "three=e"))
    assert config.adapters == {"one": Path("a"), "two": Path("c=d"), "three": Path("e")}


@pytest.mark.parametrize("text", ["one", "one=", "=path", "a b=path"])
def test_senseless_adapters_are_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="adapter"):
        resolve_config(options(text))
