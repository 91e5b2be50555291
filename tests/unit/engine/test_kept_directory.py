from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from prefold.engine import kept_directory
from prefold.engine.kept_directory import MANIFEST_NAME, KeptDirectory


def fill(scratch: Path, result: Path) -> None:
    (scratch / "download").write_bytes(b"on the way")
    (result / "config.json").write_text("{}")
    (result / "weights").write_bytes(b"w" * 100)


def refuse(_scratch: Path, _result: Path) -> None:
    pytest.fail("it is there and must not be made again")


def no_wait() -> None:
    pytest.fail("nobody else is at work")


@pytest.fixture
def kept(tmp_path: Path) -> KeptDirectory:
    return KeptDirectory(tmp_path / "models" / "name", origin="v1")


def names(kept: KeptDirectory) -> set[str]:
    return {path.name for path in kept.path.parent.iterdir()}


def test_it_is_made_once(kept: KeptDirectory) -> None:
    assert kept.find_fault() == "it is missing"
    kept.ensure(fill, on_wait=no_wait)
    assert kept.find_fault() is None
    kept.ensure(refuse, on_wait=no_wait)
    assert names(kept) == {"name", ".name.lock"}
    files = {path.name for path in kept.path.iterdir()}
    assert files == {"config.json", "weights", MANIFEST_NAME}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), ValueError("bad")]
)
def test_a_build_that_fails_leaves_everything_as_it_was(
    kept: KeptDirectory, error: BaseException
) -> None:
    def fail(scratch: Path, result: Path) -> None:
        fill(scratch, result)
        raise error

    with pytest.raises(type(error)):
        kept.ensure(fail, on_wait=no_wait)
    assert names(kept) == {".name.lock"}
    kept.ensure(fill, on_wait=no_wait)
    (kept.path / "weights").unlink()
    with pytest.raises(type(error)):
        kept.ensure(fail, on_wait=no_wait)
    assert kept.find_fault() == "weights is missing"
    kept.ensure(fill, on_wait=no_wait)
    assert kept.find_fault() is None


def append(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes() + b" ")


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda path: (path / "config.json").unlink(), "config.json is missing"),
        (lambda path: (path / "extra").touch(), "extra does not belong there"),
        (lambda path: (path / "extra").mkdir(), "extra does not belong there"),
        (append("config.json"), "config.json has other contents"),
        (lambda path: (path / "config.json").write_text("[]"), "config.json has other"),
        (lambda path: (path / "weights").write_bytes(b"w" * 99), "weights has other"),
        (lambda path: (path / MANIFEST_NAME).unlink(), "its manifest is missing"),
        (lambda path: (path / MANIFEST_NAME).write_text("{"), "its manifest is damaged"),
        (lambda path: (path / MANIFEST_NAME).write_text("[]"), "its manifest is damaged"),
        (
            lambda path: (path / MANIFEST_NAME).write_text(
                '{"format": 1, "origin": "v1", "files": 3}'
            ),
            "its manifest is damaged",
        ),
        (
            lambda path: (path / MANIFEST_NAME).write_text('{"format": 1, "origin": "v0"}'),
            "it was made from something else",
        ),
    ],
)
def test_a_damaged_one_is_found_out_and_made_again(
    kept: KeptDirectory, damage: Callable[[Path], object], fault: str
) -> None:
    kept.ensure(fill, on_wait=no_wait)
    damage(kept.path)
    assert (kept.find_fault() or "").startswith(fault)
    kept.ensure(fill, on_wait=no_wait)
    assert kept.find_fault() is None
    assert names(kept) == {"name", ".name.lock"}


def test_hidden_files_of_the_system_do_not_count(kept: KeptDirectory) -> None:
    kept.ensure(fill, on_wait=no_wait)
    (kept.path / ".DS_Store").touch()
    assert kept.find_fault() is None


def test_of_a_large_file_the_head_and_the_size_are_compared(
    kept: KeptDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_directory, "_HEAD_BYTES", 10)
    kept.ensure(fill, on_wait=no_wait)
    (kept.path / "weights").write_bytes(b"w" * 99 + b"x")
    assert kept.find_fault() is None
    (kept.path / "weights").write_bytes(b"x" + b"w" * 99)
    assert kept.find_fault() is not None


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.mkdir()])
def test_something_foreign_in_its_place_is_replaced(
    kept: KeptDirectory, make: Callable[[Path], object]
) -> None:
    kept.path.parent.mkdir()
    make(kept.path)
    kept.ensure(fill, on_wait=no_wait)
    assert kept.find_fault() is None


def test_a_link_in_its_place_is_replaced_and_its_target_left(
    kept: KeptDirectory, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").touch()
    kept.path.parent.mkdir()
    kept.path.symlink_to(foreign)
    kept.ensure(fill, on_wait=no_wait)
    assert kept.find_fault() is None
    assert (foreign / "precious").exists()
    assert not kept.path.is_symlink()


KILLED = """
import os, signal, sys
from pathlib import Path
from prefold.engine.kept_directory import KeptDirectory
def build(scratch, result):
    (scratch / "download").write_bytes(b"half")
    (result / "weights").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
KeptDirectory(Path(sys.argv[1]), origin="v1").ensure(build, on_wait=lambda: None)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(kept: KeptDirectory) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", KILLED, str(kept.path)], check=False, timeout=60
    )
    assert done.returncode < 0
    assert not kept.path.exists()
    assert len([name for name in names(kept) if name.endswith(".partial")]) == 1
    kept.ensure(fill, on_wait=no_wait)
    assert names(kept) == {"name", ".name.lock"}


def test_what_was_left_after_the_move_is_removed_without_building(
    kept: KeptDirectory,
) -> None:
    kept.ensure(fill, on_wait=no_wait)
    (kept.path.parent / ".name.old.partial" / "scratch").mkdir(parents=True)
    kept.ensure(refuse, on_wait=no_wait)
    assert names(kept) == {"name", ".name.lock"}


def test_the_build_of_a_living_process_is_left_alone(kept: KeptDirectory) -> None:
    kept.ensure(fill, on_wait=no_wait)
    partial = kept.path.parent / ".name.alive.partial"
    partial.mkdir()
    descriptor = os.open(kept.path.parent / ".name.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        kept.ensure(refuse, on_wait=no_wait)
        assert partial.exists()
    finally:
        os.close(descriptor)


def test_two_at_once_make_it_once_and_one_waits(kept: KeptDirectory) -> None:
    building, may_finish, waited = (threading.Event() for _ in range(3))

    def slow(scratch: Path, result: Path) -> None:
        building.set()
        assert may_finish.wait(20)
        fill(scratch, result)

    def on_wait() -> None:
        waited.set()
        may_finish.set()

    first = threading.Thread(target=lambda: kept.ensure(slow, on_wait=no_wait))
    first.start()
    assert building.wait(20)
    kept.ensure(refuse, on_wait=on_wait)
    first.join(20)
    assert waited.is_set()
    assert kept.find_fault() is None
    assert names(kept) == {"name", ".name.lock"}
