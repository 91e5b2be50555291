from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prefold.engine.digest_memory import FileStamp
from prefold.errors import ConfigError, InvalidInputError
from prefold.identity.private_file import read_private
from prefold.server import keys as keys_module
from prefold.server.key_records import MAX_TIME, ApiKey
from prefold.server.keys import KeyFile, parse_public_id
from support.settable_clock import SettableClock

_MAKE_KEYS_WHEN_TOLD = """
import sys
from pathlib import Path
from prefold.server.keys import KeyFile

key_file = KeyFile(Path(sys.argv[1]))
print("ready", end="", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    made = key_file.create("acme", label=f"{sys.argv[3]}-{number}")
    if number % 4 == 3:
        key_file.revoke(made.entry.public_id)
    else:
        print(made.text)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "api_keys.json"


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


def _later() -> float:
    """Tell a time at which everything written so far has come to rest."""
    return time.time() + 100.0


def test_a_key_leads_to_what_is_known_of_it(path: Path) -> None:
    key_file = KeyFile(path, now=lambda: 1000.7)
    made = key_file.create("acme", label="laptop", expires_at=2000)
    assert made.entry == ApiKey(
        public_id=made.text.split("_")[1],
        digest=hashlib.sha256(made.text.encode()).hexdigest(),
        tenant="acme",
        created_at=1000,
        expires_at=2000,
        label="laptop",
    )
    assert key_file.find(made.text) == made.entry
    assert KeyFile(path).find(made.text) == made.entry
    assert KeyFile(path).entries() == (made.entry,)
    assert [made.entry.is_expired(now) for now in (1999.9, 2000.0)] == [False, True]


def test_keys_are_random_and_of_256_bits(path: Path) -> None:
    key_file = KeyFile(path)
    texts = [key_file.create("acme").text for _ in range(20)]
    prefixes, public_ids, secrets = zip(*(text.split("_") for text in texts), strict=True)
    assert set(prefixes) == {"pf"}
    assert len(set(public_ids)) == len(set(secrets)) == 20
    assert {len(bytes.fromhex(secret)) * 8 for secret in secrets} == {256}


def test_what_is_no_key_is_not_found(path: Path) -> None:
    key_file = KeyFile(path)
    text = key_file.create("acme").text
    prefix, public_id, secret = text.split("_")
    other = key_file.create("globex").text.split("_")
    wrong = "1" if secret[-1] == "0" else "0"
    for attempt in (
        "",
        public_id,
        secret,
        f"{prefix}_{public_id}_",
        f"{prefix}_{public_id}_{secret[:-1]}",
        f"{prefix}_{public_id}_{secret[:-1]}{wrong}",
        f"{prefix}_{public_id}_{secret}0",
        f"{prefix}_{public_id}_{secret}\n",
        f"{prefix}_{public_id}_{secret}".upper(),
        f"{prefix}_{other[1]}_{secret}",
        f"{prefix}_{public_id}_{other[2]}",
        f"{prefix}_{'0' * 16}_{secret}",
        f"{prefix}_{public_id}_{'0' * 64}",
        f"{prefix}_{public_id}_{'٣' * 64}",
        "x" * 100_000,
        "\udcff",
    ):
        assert key_file.find(attempt) is None


def test_a_dump_of_the_file_holds_no_usable_key(path: Path) -> None:
    key_file = KeyFile(path)
    texts = [key_file.create("acme").text for _ in range(10)]
    dump = path.read_text(encoding="utf-8")
    for text in texts:
        assert text not in dump
        assert text.split("_")[2] not in dump
    # Nor does anything that stands in it work as a key, or as the secret of one.
    for entry in key_file.entries():
        for secret in (entry.digest, entry.public_id, ""):
            assert key_file.find(f"pf_{entry.public_id}_{secret}") is None


def test_nothing_that_is_printed_shows_a_key(path: Path) -> None:
    made = KeyFile(path).create("acme")
    assert made.text not in repr(made)
    assert made.text.split("_")[2] not in f"{made} {made.entry!r}"


@pytest.mark.parametrize("case", ["right", "wrong secret", "unknown id"])
def test_a_lookup_is_one_hash_and_one_constant_time_comparison(
    path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    key_file = KeyFile(path)
    _, text, _ = (key_file.create("acme").text for _ in range(3))
    if case == "wrong secret":
        text = text[:20] + "0" * 64
    elif case == "unknown id":
        text = "pf_" + "0" * 16 + text[19:]
    calls = []

    def counted_hash(data: bytes) -> object:
        calls.append("hash")
        return sha256(data)

    def counted_comparison(left: str, right: str) -> bool:
        calls.append(f"compare {len(left)} {len(right)}")
        return compare(left, right)

    sha256, compare = hashlib.sha256, hmac.compare_digest
    monkeypatch.setattr(hashlib, "sha256", counted_hash)
    monkeypatch.setattr(hmac, "compare_digest", counted_comparison)
    found = key_file.find(text)
    assert (found is not None) == (case == "right")
    assert calls == ["hash", "compare 64 64"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_its_owner_may_read_the_file(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        KeyFile(path).create("acme")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == [
        ".api_keys.json.lock",
        "api_keys.json",
    ]


def test_a_link_is_followed_and_stays(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    KeyFile(path).create("acme")
    link.symlink_to(path)
    made = KeyFile(link).create("acme")
    assert link.is_symlink()
    assert KeyFile(path).find(made.text) == made.entry


def test_a_file_that_is_not_there_holds_no_keys(path: Path) -> None:
    assert KeyFile(path).entries() == ()
    assert not path.parent.exists(), "reading makes nothing"


def test_a_revoked_key_is_gone(path: Path) -> None:
    key_file = KeyFile(path)
    kept, revoked = key_file.create("acme"), key_file.create("acme")
    assert key_file.revoke(revoked.entry.public_id) == revoked.entry
    assert key_file.find(revoked.text) is None
    assert key_file.find(kept.text) == kept.entry
    assert revoked.entry.digest not in path.read_text(encoding="utf-8")
    with pytest.raises(InvalidInputError, match="there is no key"):
        key_file.revoke(revoked.entry.public_id)


def test_a_key_is_named_by_its_id_or_more_of_it(path: Path) -> None:
    made = KeyFile(path).create("acme")
    public_id = made.entry.public_id
    for text in (public_id, f"pf_{public_id}", made.text):
        assert parse_public_id(text) == public_id


@pytest.mark.parametrize("text", ["", "pf_", "secret-thing", "A" * 16, "0" * 17])
def test_what_names_no_key_is_not_repeated(text: str) -> None:
    with pytest.raises(InvalidInputError, match="16 hexadecimal digits") as caught:
        parse_public_id(text)
    assert text in {"", "pf_"} or text not in str(caught.value)


@pytest.mark.parametrize("tenant", ["", "a b", "a/b", "-", "x" * 65])
def test_tenants_that_cannot_be(path: Path, tenant: str) -> None:
    with pytest.raises(ConfigError, match="a tenant's name is"):
        KeyFile(path).create(tenant)
    assert not path.exists()


@pytest.mark.parametrize("label", ["", "x" * 101, "two\nlines", "\x1b[31m", "\udcff"])
def test_labels_that_cannot_be(path: Path, label: str) -> None:
    with pytest.raises(ConfigError, match="a label is"):
        KeyFile(path).create("acme", label=label)
    assert not path.exists()


@pytest.mark.parametrize("expires_at", [0, 1000, 253_402_300_800, 10**30])
def test_times_at_which_no_key_can_expire(path: Path, expires_at: int) -> None:
    with pytest.raises(ConfigError, match="must expire after now"):
        KeyFile(path, now=lambda: 1000.0).create("acme", expires_at=expires_at)


def test_a_full_file_takes_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "_MAX_KEYS", 2)
    key_file = KeyFile(path)
    made = [key_file.create("acme") for _ in range(2)]
    with pytest.raises(ConfigError, match="is full: revoke keys"):
        key_file.create("acme")
    assert key_file.entries() == tuple(new.entry for new in made)


def test_a_write_that_fails_is_a_sentence_and_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = KeyFile(path)
    made = key_file.create("acme")
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=r"cannot write the key file .*: No space"):
        key_file.create("acme")
    with pytest.raises(ConfigError, match=r"cannot write the key file .*: No space"):
        key_file.revoke(made.entry.public_id)
    assert path.read_bytes() == before
    assert key_file.find(made.text) == made.entry
    assert len(list(path.parent.iterdir())) == 2, "the file and its lock"


# -- damage ----------------------------------------------------------------------------


def _entry(**changes: object) -> dict[str, object]:
    entry: dict[str, object] = {
        "public_id": "0" * 16,
        "digest": "0" * 64,
        "tenant": "acme",
        "created_at": 5,
        "expires_at": None,
        "label": None,
    }
    return entry | changes


def _document(*entries: object, **changes: object) -> bytes:
    return json.dumps({"format": 1, "keys": list(entries)} | changes).encode()


DAMAGED = {
    "empty": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "nested": b"[" * 100_000,
    "a list": b"[]",
    "a number": b"3",
    "no keys": b'{"format": 1}',
    "another release": _document(format=2),
    "more fields": _document(extra=1),
    "keys are no list": _document(keys=3),
    "keys are an object": _document(keys={"a": 1}),
    "an entry is a text": _document("acme"),
    "an entry is null": _document(None),
    "a field less": _document({"public_id": "0" * 16}),
    "a field more": _document(_entry(extra=1)),
    "an id twice": _document(_entry(), _entry()),
    "no id": _document(_entry(public_id="x")),
    "a long id": _document(_entry(public_id="0" * 17)),
    "an id of capitals": _document(_entry(public_id="A" * 16)),
    "no digest": _document(_entry(digest=None)),
    "a short digest": _document(_entry(digest="0" * 63)),
    "a bad tenant": _document(_entry(tenant="a b")),
    "no tenant": _document(_entry(tenant=None)),
    "a negative time": _document(_entry(created_at=-1)),
    "a time with a point": _document(_entry(created_at=1.5)),
    "a time that is a flag": _document(_entry(created_at=True)),
    "a huge time": _document(_entry(expires_at=10**30)),
    "a label with a control": _document(_entry(label="\x1b")),
    "a label that is a number": _document(_entry(label=3)),
}


def test_the_damages_are_none_by_themselves(path: Path) -> None:
    _put(path, _document(_entry(), _entry(public_id="1" * 16, expires_at=9, label="x")))
    assert len(KeyFile(path).entries()) == 2


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused_with_a_sentence(path: Path, content: bytes) -> None:
    _put(path, content)
    with pytest.raises(ConfigError, match="is damaged or of another release") as caught:
        KeyFile(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


def test_a_file_that_others_can_change_is_refused(path: Path) -> None:
    KeyFile(path).create("acme")
    path.chmod(0o622)
    with pytest.raises(ConfigError, match="can be accessed by others"):
        KeyFile(path)


def test_nobody_writes_over_a_damaged_file(path: Path) -> None:
    key_file = KeyFile(path)
    made = key_file.create("acme")
    path.write_bytes(b"{")
    with pytest.raises(ConfigError, match="is damaged"):
        key_file.create("acme")
    with pytest.raises(ConfigError, match="is damaged"):
        key_file.revoke(made.entry.public_id)
    assert path.read_bytes() == b"{"


# -- a running server ------------------------------------------------------------------


def test_a_running_server_sees_new_and_revoked_keys(
    path: Path, clock: SettableClock
) -> None:
    server, command = KeyFile(path, clock=clock), KeyFile(path)
    made = command.create("acme")
    assert server.find(made.text) is None, "it has just looked"
    clock.advance(2.0)
    assert server.find(made.text) == made.entry
    command.revoke(made.entry.public_id)
    clock.advance(1.9)
    assert server.find(made.text) == made.entry
    clock.advance(0.1)
    assert server.find(made.text) is None


def test_changes_are_seen_within_five_seconds() -> None:
    assert keys_module.CHECK_INTERVAL_S < 5.0


def _count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    reads: list[Path] = []

    def counted(path: Path, what: str, *, max_bytes: int) -> bytes:
        reads.append(path)
        return read_private(path, what, max_bytes=max_bytes)

    monkeypatch.setattr("prefold.server.keys.read_private", counted)
    return reads


def test_a_file_at_rest_is_read_once_and_looked_at_every_two_seconds(
    path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = KeyFile(path).create("acme")
    reads = _count_reads(monkeypatch)
    stats: list[Path] = []
    stamp_of = FileStamp.of

    def counted(path: Path) -> FileStamp:
        stats.append(path)
        return stamp_of(path)

    monkeypatch.setattr(FileStamp, "of", counted)
    server = KeyFile(path, clock=clock, now=_later)
    for _ in range(100):
        clock.advance(0.1)
        assert server.find(made.text) == made.entry
    assert len(reads) == 1
    assert 4 <= len(stats) <= 6


@pytest.mark.parametrize("change", ["content", "time", "inode"])
def test_every_trace_of_a_change_makes_it_read_again(
    path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    KeyFile(path).create("acme")
    server = KeyFile(path, clock=clock, now=_later)
    reads = _count_reads(monkeypatch)
    match change:
        case "content":
            path.write_bytes(path.read_bytes() + b"\n")
        case "time":
            os.utime(path, ns=(1, 1))
        case _:
            copy = path.with_name("copy")
            _put(copy, path.read_bytes())
            copy.replace(path)
    clock.advance(2.0)
    server.entries()
    assert len(reads) == 1


def test_a_file_read_moments_after_a_change_is_read_again(
    path: Path, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # File times are coarse: a second change of the same size may leave no trace, so
    # what was young when it was read is not trusted, however old it looks later.
    made = KeyFile(path).create("acme")
    now = SettableClock(time.time())
    server = KeyFile(path, clock=clock, now=now)
    stamp = FileStamp.of(path)
    monkeypatch.setattr(FileStamp, "of", lambda _path: stamp)
    path.write_bytes(path.read_bytes().replace(b"acme", b"ACME"))
    clock.advance(50.0)
    now.advance(50.0)
    found = server.find(made.text)
    assert found is not None
    assert found.tenant == "ACME"


def _damage(path: Path) -> None:
    path.write_bytes(b"{ half a fi")


def _open_up(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("spoil", [_damage, _open_up])
def test_a_server_keeps_the_last_good_keys_and_warns_once(
    path: Path,
    clock: SettableClock,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    made = KeyFile(path).create("acme")
    content = path.read_bytes()
    server = KeyFile(path, clock=clock)
    spoil(path)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            clock.advance(2.0)
            assert server.find(made.text) == made.entry
    [record] = caplog.records
    assert "the keys read before stay valid" in record.getMessage()
    assert "half" not in record.getMessage()
    _put(path, content)
    second = KeyFile(path).create("acme")
    clock.advance(2.0)
    assert server.find(second.text) == second.entry


def test_a_fault_that_comes_back_is_warned_of_again(
    path: Path, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = KeyFile(path).create("acme")
    content = path.read_bytes()
    server = KeyFile(path, clock=clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            _damage(path)
            clock.advance(2.0)
            assert server.find(made.text) == made.entry
            _put(path, content)
            clock.advance(2.0)
            assert server.find(made.text) == made.entry
    assert len(caplog.records) == 2


def test_a_key_may_last_until_the_last_date_there_is(path: Path) -> None:
    made = KeyFile(path).create("acme", expires_at=MAX_TIME)
    found = KeyFile(path).find(made.text)
    assert found is not None
    assert found.expires_at == MAX_TIME


def test_keys_go_with_their_file(
    path: Path, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = KeyFile(path).create("acme")
    server = KeyFile(path, clock=clock)
    path.unlink()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.advance(2.0)
            assert server.find(made.text) is None
    [record] = caplog.records
    assert "holds no keys any more" in record.getMessage()


def test_commands_at_once_lose_no_key(path: Path) -> None:
    names = ["one", "two", "three"]
    processes = [
        subprocess.Popen(  # noqa: S603 -- the test's own script
            [sys.executable, "-c", _MAKE_KEYS_WHEN_TOLD, str(path), "12", name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.read(5) == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    texts = [
        text for process in processes for text in process.communicate(timeout=60)[0].split()
    ]
    assert len(texts) == 27
    key_file = KeyFile(path)
    assert {text.split("_")[1] for text in texts} == {
        entry.public_id for entry in key_file.entries()
    }
    assert all(key_file.find(text) is not None for text in texts)
    assert sorted(p.name for p in path.parent.iterdir()) == [
        ".api_keys.json.lock",
        "api_keys.json",
    ]


def test_of_two_threads_that_look_at_once_one_does_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, command = KeyFile(path), KeyFile(path)
    first = command.create("acme")
    is_reading, may_end = threading.Event(), threading.Event()
    read = KeyFile._read

    def slow_read(own: KeyFile) -> dict[str, ApiKey]:
        keys = read(own)
        is_reading.set()
        assert may_end.wait(30)
        return keys

    monkeypatch.setattr(KeyFile, "_read", slow_read)
    slow = threading.Thread(target=server.refresh)
    slow.start()
    assert is_reading.wait(30)
    monkeypatch.setattr(KeyFile, "_read", read)
    # With what is read now, the slow one would put back what it has read before.
    command.revoke(first.entry.public_id)
    server.refresh()
    assert server.find(first.text) is None
    may_end.set()
    slow.join()
    assert server.find(first.text) == first.entry
    server.refresh()
    assert server.find(first.text) is None


def test_what_is_revoked_is_not_brought_back_by_who_was_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = KeyFile(path)
    made = server.create("acme")
    is_reading, may_end = threading.Event(), threading.Event()
    read = KeyFile._read

    def read_slowly(self: KeyFile) -> dict[str, ApiKey]:
        keys = read(self)
        if threading.current_thread() is slow:
            is_reading.set()
            assert may_end.wait(20)
        return keys

    monkeypatch.setattr(KeyFile, "_read", read_slowly)
    slow = threading.Thread(target=server.refresh)
    slow.start()
    assert is_reading.wait(20)
    revoking = threading.Thread(target=server.revoke_tenants, args=(["acme"],))
    revoking.start()
    may_end.set()
    for thread in (slow, revoking):
        thread.join(20)
    assert server.find(made.text) is None
    assert KeyFile(path).entries() == ()


def test_all_keys_of_some_tenants_are_revoked_at_once(path: Path) -> None:
    key_file = KeyFile(path)
    kept = [key_file.create(name).text for name in ("acme", "globex", "acme", "blue")][1]
    assert key_file.revoke_tenants({"acme", "blue", "nobody"}) == 3
    assert [entry.tenant for entry in key_file.entries()] == ["globex"]
    assert KeyFile(path).find(kept) is not None
