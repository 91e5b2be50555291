from __future__ import annotations

import copy
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from prefold.errors import ConfigError, InvalidInputError
from prefold.identity.domain import PUBLIC, Audience, AudienceKind, Domain
from prefold.identity.encoding import digest
from prefold.identity.secret import MasterSecret, default_secret_path

_MAKE_WHEN_TOLD = """
import sys
from pathlib import Path
from prefold.identity.domain import PUBLIC, Audience, AudienceKind
from prefold.identity.secret import MasterSecret

print("ready", end="", flush=True)
sys.stdin.readline()
secret = MasterSecret.load_or_create(Path(sys.argv[1]))
print(secret.domain_key(Audience(AudienceKind.OWN, PUBLIC)).hex())
"""

OWN_PUBLIC = Audience(AudienceKind.OWN, PUBLIC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "prefold" / "master_secret"


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    path.chmod(mode)


def test_the_file_is_made_once_and_read_afterwards(path: Path) -> None:
    made = MasterSecret.load_or_create(path)
    assert path.stat().st_size == 32
    read = MasterSecret.load_or_create(path)
    assert made.domain_key(OWN_PUBLIC) == read.domain_key(OWN_PUBLIC)
    assert made.domain_key(OWN_PUBLIC) != MasterSecret.generate().domain_key(OWN_PUBLIC)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_may_read_the_file(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        MasterSecret.load_or_create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert _names(path.parent) == [path.name], "nothing half-made is left"


def test_processes_that_make_it_at_once_agree(path: Path) -> None:
    processes = [
        subprocess.Popen(  # noqa: S603 -- the test's own script
            [sys.executable, "-c", _MAKE_WHEN_TOLD, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.read(5) == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert outputs == {
        MasterSecret.load_or_create(path).domain_key(OWN_PUBLIC).hex() + "\n"
    }
    assert _names(path.parent) == [path.name]


def test_a_process_that_comes_second_takes_the_first_ones_secret(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = b"f" * 32
    link = os.link

    def slower_link(source: Path, target: Path) -> None:
        _write_beside(path, first)
        link(source, target)

    monkeypatch.setattr(os, "link", slower_link)
    loaded = MasterSecret.load_or_create(path)
    assert loaded.domain_key(OWN_PUBLIC) == MasterSecret(first).domain_key(OWN_PUBLIC)
    assert _names(path.parent) == [path.name]


def _write_beside(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


@pytest.mark.parametrize("failing", ["link", "fsync"])
def test_a_failure_while_making_it_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(ConfigError, match=r"cannot make .*: No space left on device"):
        MasterSecret.load_or_create(path)
    assert _names(path.parent) == []


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_file_of_another_length_is_refused(path: Path, length: int) -> None:
    _write(path, bytes(length))
    with pytest.raises(ConfigError, match=f"must have 32 bytes, it has {length}"):
        MasterSecret.load_or_create(path)
    assert path.stat().st_size == length


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666, 0o601])
def test_a_file_that_others_may_access_is_refused(path: Path, mode: int) -> None:
    _write(path, bytes(32), mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}\).*chmod 600"):
        MasterSecret.load_or_create(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_read(path: Path, mode: int) -> None:
    _write(path, b"k" * 32, mode)
    loaded = MasterSecret.load_or_create(path)
    assert loaded.domain_key(OWN_PUBLIC) == MasterSecret(b"k" * 32).domain_key(OWN_PUBLIC)


def test_what_is_no_regular_file_is_refused_at_once(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        MasterSecret.load_or_create(path)
    fifo = path.with_name("fifo")
    os.mkfifo(fifo, 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        MasterSecret.load_or_create(fifo)


def test_a_path_below_a_file_is_one_sentence(path: Path) -> None:
    _write(path, bytes(32))
    with pytest.raises(ConfigError, match=r"cannot read .*: Not a directory"):
        MasterSecret.load_or_create(path / "below")


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidInputError, match=f"32 bytes, got {length}"):
        MasterSecret(bytes(length))


def test_no_representation_shows_the_secret() -> None:
    raw = b"canary--" * 4
    secret = MasterSecret(raw)
    for shown in [
        repr(secret),
        str(secret),
        f"{secret}",
        repr([secret]),
        repr(dir(secret)),
    ]:
        assert "canary" not in shown
        assert raw.hex() not in shown
    with pytest.raises(TypeError):
        vars(secret)
    with pytest.raises(TypeError, match="cannot be copied or serialised"):
        copy.deepcopy(secret)


def test_domain_key_is_made_as_documented() -> None:
    raw = bytes(range(32))
    audience = Audience(AudienceKind.OWN, Domain("a/b", b"s"))
    assert MasterSecret(raw).domain_key(audience) == digest(
        "domain-key", "own", "a/b", b"s", 0, key=raw
    )


def test_the_environment_names_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFOLD_MASTER_SECRET_FILE", str(tmp_path / "secret"))
    assert default_secret_path() == tmp_path / "secret"
    monkeypatch.setenv("PREFOLD_MASTER_SECRET_FILE", "")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_secret_path() == tmp_path / "prefold" / "master_secret"
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE")
    assert default_secret_path() == tmp_path / "prefold" / "master_secret"


@pytest.mark.parametrize("state", [None, "", "relative"])
def test_without_a_state_directory_it_is_the_home_directorys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str | None
) -> None:
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if state is not None:
        monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ".local" / "state" / "prefold" / "master_secret"
    assert default_secret_path() == expected


def test_a_file_of_another_user_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MasterSecret.load_or_create(path)
    fstat = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        values = list(fstat(descriptor))
        values[stat.ST_UID] = os.geteuid() + 4321
        return os.stat_result(values)

    monkeypatch.setattr(os, "fstat", of_another)
    with pytest.raises(ConfigError, match="another user"):
        MasterSecret.load_or_create(path)
