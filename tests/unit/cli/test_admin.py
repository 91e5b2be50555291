"""``prefold cache`` and ``prefold domains`` against planes on a real socket."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefold.cli.main import main
from prefold.server.config import TenantConfig
from support.live_server import serving
from support.planes_rig import RigSettings, open_rig
from support.processes import run_python

ACME, BLUE = TenantConfig(name="acme"), TenantConfig(name="blue")
RULES = "the rules of this house are many and they are plain to all who live in it "


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty directory, with nothing set that decides about places."""
    for name in ("CONFIG", "KEY_FILE", "TENANTS", "ADMIN_URL", "ADMIN_TOKEN_FILE"):
        monkeypatch.delenv(f"PREFOLD_{name}", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)


@dataclass
class Shell:
    """Runs commands while a server listens."""

    capsys: pytest.CaptureFixture[str]
    place: list[str]

    async def __call__(self, *arguments: str) -> str:
        code = await asyncio.to_thread(main, [*arguments, *self.place])
        out, err = self.capsys.readouterr()
        assert code == 0, err
        return out

    async def json(self, *arguments: str) -> Any:
        out = await self(*arguments, "--json")
        assert out.count("\n") == 1
        return json.loads(out)

    async def fail(self, *arguments: str) -> str:
        code = await asyncio.to_thread(main, [*arguments, *self.place])
        out, err = self.capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.startswith("Error: ")
        assert err.count("\n") == 1
        return err


def with_server(
    check: Callable[[Shell], Any], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        settings = RigSettings(directory=directory, tenants=(ACME, BLUE))
        async with open_rig(settings) as rig, serving(rig.planes.admin) as port:
            token_file = str(directory / "admin_token")
            place = ["--url", f"http://127.0.0.1:{port}", "--token-file", token_file]
            await check(Shell(capsys, place))

    # Commands answer Ctrl-C by a signal handler, which only the main thread may set.
    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefold.cli.main.signal.signal", lambda *_: None)


def test_a_prefix_is_approved_found_listed_and_withdrawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix, chat = tmp_path / "rules.txt", tmp_path / "chat.json"
    prefix.write_text(RULES)
    chat.write_text(json.dumps([{"role": "system", "content": RULES}]))

    async def check(shell: Shell) -> None:
        approve = ["cache", "approve", "--domain", "acme", "--label", "rules"]
        made = await shell.json(
            *approve, "--prompt-file", str(prefix), "--pinned", "--ttl", "12h"
        )
        assert 43_000 < made["expires_in_s"] <= 43_200
        look = ["cache", "lookup", "--prompt", f"{RULES} and more"]
        for tenant, tokens in (("acme", made["tokens"]), ("blue", 0)):
            found = await shell.json(*look, "--tenant", tenant)
            assert found["prompts"][0]["hit_tokens"] == tokens
        below = await shell.json(*look, "--tenant", "acme", "--domain", "acme/a")
        assert below["prompts"][0]["hit_tokens"] == made["tokens"]
        listed = await shell("cache", "approvals", "--domain", "acme")
        assert listed.splitlines()[0].split()[:3] == ["id", "domain", "label"]
        assert made["id"] in listed
        assert "rules" in await shell("cache", "tree")
        stats = await shell("cache", "stats")
        assert "pinned blocks" in stats
        assert "blocks idle" in stats
        [acme] = [line for line in stats.splitlines() if line.split()[:1] == ["acme"]]
        assert len(acme.split()) == len(("tenant", "domain", "idle", "reserved", "max"))
        assert "'tenant'" not in stats
        again = await shell(*approve[:-1], "chat", "--messages-file", str(chat))
        assert "chat" in again
        receipt = await shell.json("cache", "withdraw", made["id"])
        assert receipt["ended_approvals"] == 1
        assert "no approval with this id" in await shell.fail(
            "cache", "withdraw", made["id"]
        )
        assert "expires in s" in await shell("cache", "approvals")

    with_server(check, tmp_path, capsys)


def test_a_run_is_listed_pinned_and_unpinned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check(shell: Shell) -> None:
        for tenant in ("acme", "blue"):
            await shell("cache", "warm", "-p", RULES, "--tenant", tenant)
        [newest, oldest] = (await shell.json("cache", "runs"))["data"]
        assert (newest["domain"], oldest["domain"]) == ("blue", "acme")
        listed = await shell("cache", "runs", "--limit", "1")
        assert listed.split()[:3] == ["id", "domain", "start"]
        assert newest["id"] in listed
        assert oldest["id"] not in listed
        cursor = re.search(r"--cursor (\S+)\.\n$", listed)
        assert cursor is not None
        rest = await shell("cache", "runs", "--cursor", cursor[1])
        assert oldest["id"] in rest
        assert newest["id"] not in rest
        assert "--cursor" not in rest
        below = await shell.json("cache", "runs", "--parent", oldest["id"])
        assert all(run["path"] == [oldest["id"]] for run in below["data"])

        async def pinned() -> list[bool]:
            return [run["is_pin"] for run in (await shell.json("cache", "runs"))["data"]]

        assert await pinned() == [False, False]
        made = await shell.json("cache", "pin", oldest["id"])
        assert made["num_pinned_blocks"] == oldest["blocks"]
        assert await pinned() == [False, True]
        table = await shell("cache", "pin", newest["id"])
        both = rf"^pinned blocks +{2 * oldest['blocks']} *$"
        assert re.search(both, table, re.MULTILINE)
        await shell("cache", "unpin", newest["id"])
        assert (await shell.json("cache", "unpin", oldest["id"]))["num_pinned_blocks"] == 0
        assert await pinned() == [False, False]
        assert "no pin" in await shell.fail("cache", "unpin", oldest["id"])
        await shell("cache", "reset")
        for command in (["pin"], ["runs", "--parent"]):
            said = await shell.fail("cache", *command, oldest["id"])
            assert "there is no such run any more" in said

    with_server(check, tmp_path, capsys)


def test_what_is_cached_is_shown_and_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check(shell: Shell) -> None:
        async def fill() -> None:
            warm = ["cache", "warm", "-p", RULES, "--tenant", "acme"]
            refused = await shell.fail(*warm, "--priority", "101")
            assert "priority must be" in refused
            warmed = await shell(*warm, "--ttl", "90s", "--priority", "-5")
            assert "hit tokens" in warmed

        async def dropped(*arguments: str) -> int:
            await fill()
            receipt = await shell.json("cache", "invalidate", *arguments)
            return int(receipt["dropped_blocks"])

        await fill()
        tree = await shell("cache", "tree", "--max-nodes", "1", "--depth", "1")
        assert "own" in tree
        assert "acme" in tree
        blocks = (await shell.json("cache", "reset"))["dropped_blocks"]
        assert blocks > 3
        for arguments in (
            ["--everything"],
            ["--domain", "acme"],
            ["--domain", "acme", "--exact"],
            ["--field", "weights", "--value", "current"],
            ["--field", "position_offset", "--value", "0"],
            ["--field", "adapter", "--value", "null"],
            ["--older-than", "0s"],
        ):
            assert await dropped(*arguments) == blocks, arguments
        for arguments in (
            ["--domain", "blue"],
            ["--older-than", "12h"],
            ["--field", "weights", "--value", "00ff"],
            ["--approval", "nobody"],
            ["--prompt", "another text that nobody sent before, long enough"],
        ):
            assert await dropped(*arguments) == 0, arguments
        assert 0 < await dropped("--prompt", RULES, "--domain", "acme") < blocks
        receipt = await shell.json("domains", "revoke", "acme", "--drain")
        assert (receipt["requests"], receipt["revoked_keys"]) == ("drain", 1)
        assert "revoked keys" in await shell("domains", "revoke", "blue")

    with_server(check, tmp_path, capsys)


def test_what_the_server_refuses_is_its_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check(shell: Shell) -> None:
        for arguments, words in (
            (["cache", "lookup", "-p", RULES], "tenant is missing"),
            (["cache", "lookup", "-p", RULES, "--tenant", "zzz"], "no such tenant"),
            (["cache", "invalidate"], "there is no selector"),
            (["cache", "invalidate", "--everything", "--domain", "a"], "several selectors"),
            (
                ["cache", "invalidate", "--field", "wieghts", "--value", "1"],
                "mean weights?",
            ),
            (["cache", "invalidate", "--field", "weights"], "field and value go together"),
            (["cache", "approve", "--domain", "a//b", "--label", "a", "-p", RULES], "path"),
            (["domains", "revoke", "public"], "everybody's"),
        ):
            assert words in await shell.fail(*arguments)

    with_server(check, tmp_path, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cache", "lookup"], "one of --prompt, --prompt-file and --messages-file"),
        (["cache", "warm", "-p", "a", "--prompt-file", "b"], "one of --prompt"),
        (["cache", "warm", "--prompt-file", "nothing"], "cannot read nothing: No such"),
        (["cache", "warm", "--prompt-file", "bytes"], "bytes is not text in UTF-8"),
        (["cache", "warm", "--messages-file", "text"], "text is no JSON"),
        (["cache", "warm", "--messages-file", "number"], "number must hold a list"),
        (["cache", "warm", "--messages-file", "object"], "object must hold a list"),
        (["cache", "invalidate", "--older-than", "soon"], "--older-than must be a number"),
        (["cache", "approve", "--domain", "a", "--label", "b", "--ttl", "x"], "--ttl must"),
        (
            ["cache", "invalidate", "--field", "position_offset", "--value", "x"],
            "--value must be 'current' or a whole number",
        ),
        (["domains", "revoke", "a//b"], "a domain path is segments"),
        (["domains", "revoke", "../cache"], "a domain path is segments"),
        (["cache", "stats", "--url", "8001"], "--url must be http://"),
        (["cache", "stats", "--url", "http://a/v1"], "--url must be http://"),
        (["cache", "stats"], "admin_token does not exist: a server makes it"),
        (["cache", "withdraw"], "Missing argument"),
        (["cache", "approve", "-p", "a"], "Missing option"),
        (["cache", "nothing"], "No such command"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bytes").write_bytes(b"\xff")
    Path("text").write_text("{")
    Path("number").write_text("5")
    Path("object").write_text('{"messages": [], "tenant": "a"}')
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_a_server_that_does_not_answer_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("x" * 64)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("PREFOLD_ADMIN_URL", url)
        monkeypatch.setenv("PREFOLD_ADMIN_TOKEN_FILE", str(token))
        assert main(["cache", "stats"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no admin plane answers at http://127.0.0.1:" in err
    assert err.count("\n") == 1
    assert "secret" not in err
    assert "xxxx" not in err


def test_the_place_is_that_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("x" * 64)
    text = f'[server]\nadmin_token_file = "{token}"\nadmin_host = "::1"\nadmin_port = '
    Path("prefold.toml").write_text(f"{text}9")
    assert main(["cache", "stats"]) == 2
    assert "no admin plane answers at http://[::1]:9" in capsys.readouterr().err
    Path("prefold.toml").write_text(f"{text}0")
    assert main(["cache", "stats"]) == 2
    assert "give its address with --url" in capsys.readouterr().err


_WITHOUT_TORCH = """
import sys

sys.modules["torch"] = sys.modules["transformers"] = None
from prefold.cli.main import main

sys.exit(0 if main(["cache", "stats", "--url", "x"]) == 2 else 1)
"""


def test_the_client_needs_no_torch() -> None:
    run_python(_WITHOUT_TORCH)


def test_what_if_is_a_table_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def check(shell: Shell) -> None:
        before = await shell("cache", "whatif")
        assert "Note: no request has looked its prompt up yet" in before
        await shell("cache", "warm", "--prompt", RULES, "--tenant", "acme")
        lines = (await shell("cache", "whatif")).splitlines()
        titles = ("factor", "capacity blocks", "hit rate", "saved s", "saved share")
        assert lines[0].split() == " ".join(titles).split()
        assert [line.split()[:2] for line in lines[1:5]] == [
            ["0.5", "512"],
            ["1.0", "1,024"],
            ["2.0", "2,048"],
            ["4.0", "4,096"],
        ]
        assert lines[5].startswith("Of 1 requests; ")
        found = await shell.json("cache", "whatif")
        assert (found["object"], found["requests"]) == ("cache.whatif", 1)

    with_server(check, tmp_path, capsys)
