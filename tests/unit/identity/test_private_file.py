from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from prefold.errors import ConfigError
from prefold.identity.private_file import (
    create_private,
    lock_beside,
    read_private,
    replace_private,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "file"


def _read(path: Path) -> bytes:
    return read_private(path, "the file", max_bytes=10)


def test_what_was_written_is_read(path: Path) -> None:
    replace_private(path, b"one")
    assert _read(path) == b"one"
    replace_private(path, b"two")
    assert _read(path) == b"two"


def test_the_first_to_create_it_stays(path: Path) -> None:
    create_private(path, b"one")
    create_private(path, b"two")
    assert _read(path) == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_gets_at_it(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        replace_private(path, b"one")
        with lock_beside(path):
            pass
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert modes == {"file": 0o600, ".file.lock": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602, 0o610])
def test_a_file_that_others_get_at_is_refused(path: Path, mode: int) -> None:
    replace_private(path, b"one")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"the file .* \(mode {mode:04o}\).* chmod 600"):
        _read(path)


def test_a_file_that_is_none_is_refused(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _read(path)
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot read the file"):
        _read(path)
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        _read(path)


def test_a_file_that_is_too_large_is_refused(path: Path) -> None:
    replace_private(path, b"x" * 11)
    with pytest.raises(ConfigError, match="has 11 bytes, at most 10"):
        _read(path)


@pytest.mark.parametrize("write", [replace_private, create_private])
def test_a_failure_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    replace_private(path, b"one")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write(path, b"two")
    assert _read(path) == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_file_of_another_user_is_refused_where_it_must_be_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_private(path, b"one")
    assert read_private(path, "the file", max_bytes=10, must_be_own=True) == b"one"
    fstat = os.fstat
    owner = os.geteuid() + 4321

    def of_another(descriptor: int) -> os.stat_result:
        values = list(fstat(descriptor))
        values[stat.ST_UID] = owner
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", of_another)
    assert _read(path) == b"one"
    with pytest.raises(ConfigError, match=r"the file .* belongs to another user"):
        read_private(path, "the file", max_bytes=10, must_be_own=True)
    owner = 0
    assert read_private(path, "the file", max_bytes=10, must_be_own=True) == b"one"
