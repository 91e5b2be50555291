"""The key file, changed by commands and read by a server, against a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefold.errors import ConfigError, InvalidInputError
from prefold.server.key_records import ApiKey
from prefold.server.keys import CHECK_INTERVAL_S, KeyFile
from support.settable_clock import SettableClock


class KeyFileMachine(RuleBasedStateMachine):
    """Two commands and a server, each with its own view of one file."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="prefold-keys-"))
        self.path = self.directory / "keys.json"
        self.clock = SettableClock()
        self.server = KeyFile(self.path, clock=self.clock)
        self.commands = [KeyFile(self.path) for _ in range(2)]
        #: What the file holds, and what the server may still believe it does.
        self.current: dict[str, ApiKey] = {}
        self.believed: dict[str, ApiKey] = {}
        self.checked_at = 0.0
        self.all_texts: list[str] = []
        #: Whole, while something else is in its place.
        self.good: bytes | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @property
    def is_damaged(self) -> bool:
        return self.good is not None

    @rule(
        which=st.integers(0, 1),
        tenant=st.sampled_from(["a", "b"]),
        label=st.none() | st.sampled_from(["x", "é"]),
        expires_at=st.none() | st.just(253_402_300_799),
    )
    def create(
        self, which: int, tenant: str, label: str | None, expires_at: int | None
    ) -> None:
        command = self.commands[which]
        if self.is_damaged:
            with pytest.raises(ConfigError):
                command.create(tenant, label=label, expires_at=expires_at)
            return
        made = command.create(tenant, label=label, expires_at=expires_at)
        assert (made.entry.tenant, made.entry.label) == (tenant, label)
        assert made.text not in self.all_texts
        self.all_texts.append(made.text)
        self.current = {**self.current, made.text: made.entry}
        assert command.find(made.text) == made.entry

    @precondition(lambda self: self.all_texts)
    @rule(which=st.integers(0, 1), data=st.data())
    def revoke(self, which: int, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.all_texts))
        command = self.commands[which]
        if self.is_damaged or text not in self.current:
            with pytest.raises(ConfigError if self.is_damaged else InvalidInputError):
                command.revoke(text)
            return
        assert command.revoke(text) == self.current[text]
        self.current = {t: entry for t, entry in self.current.items() if t != text}
        assert command.find(text) is None

    @precondition(lambda self: not self.is_damaged and self.path.exists())
    @rule(content=st.sampled_from([b"", b"{}", b"[]", b'{"format": 1, "keys": [{}]}']))
    def damage(self, content: bytes) -> None:
        self.good = self.path.read_bytes()
        self.path.write_bytes(content)

    @precondition(lambda self: self.is_damaged)
    @rule()
    def repair(self) -> None:
        assert self.good is not None
        self.path.write_bytes(self.good)
        self.good = None

    @precondition(lambda self: not self.is_damaged and self.path.exists())
    @rule()
    def remove(self) -> None:
        self.path.unlink()
        self.current = {}

    @rule(seconds=st.sampled_from([0.5, 1.0, CHECK_INTERVAL_S, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart_the_server(self) -> None:
        if self.is_damaged:
            with pytest.raises(ConfigError):
                KeyFile(self.path, clock=self.clock)
            return
        self.server = KeyFile(self.path, clock=self.clock)
        self.believed, self.checked_at = self.current, self.clock.now

    @invariant()
    def the_server_knows_what_it_may(self) -> None:
        if self.clock.now - self.checked_at >= CHECK_INTERVAL_S:
            self.checked_at = self.clock.now
            if not self.is_damaged:
                self.believed = self.current
        for text in self.all_texts:
            assert self.server.find(text) == self.believed.get(text)
        assert set(self.server.entries()) == set(self.believed.values())

    @invariant()
    def the_file_holds_no_key(self) -> None:
        if self.path.exists():
            dump = self.path.read_bytes()
            assert not any(text.split("_")[2].encode() in dump for text in self.all_texts)
            assert self.path.stat().st_mode & 0o077 == 0
        names = {path.name for path in self.directory.iterdir()}
        assert names <= {"keys.json", ".keys.json.lock"}, "something half-made is left"


TestKeyFile = KeyFileMachine.TestCase
