from __future__ import annotations

from pathlib import Path

import pytest

from prefold.engine import user_dirs
from prefold.errors import ConfigError
from prefold.identity.secret import SECRET_FILE_VARIABLE, default_secret_path


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFOLD_CACHE_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(SECRET_FILE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")


def test_without_variables_they_are_below_home() -> None:
    assert user_dirs.cache_dir() == Path("/home/someone/.cache/prefold")
    assert user_dirs.state_dir() == Path("/home/someone/.local/state/prefold")


def test_the_xdg_variables_move_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert user_dirs.cache_dir() == Path("/c/prefold")
    assert user_dirs.state_dir() == Path("/s/prefold")


@pytest.mark.parametrize("value", ["", "relative/dir"])
def test_a_relative_xdg_variable_is_ignored(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert user_dirs.cache_dir() == Path("/home/someone/.cache/prefold")


def test_the_own_variable_names_the_cache_outright(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    monkeypatch.setenv("PREFOLD_CACHE_DIR", "mine")
    monkeypatch.chdir(tmp_path)
    assert user_dirs.cache_dir() == tmp_path / "mine"


def test_no_home_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="set XDG_STATE_HOME"):
        user_dirs.state_dir()


@pytest.mark.parametrize("xdg", ["", "/s", "relative"])
def test_the_master_secret_lies_in_the_state_directory(
    monkeypatch: pytest.MonkeyPatch, xdg: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", xdg)
    assert default_secret_path().parent == user_dirs.state_dir()
