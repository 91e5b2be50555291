from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from prefold.cli import app as app_module
from prefold.cli.main import main
from prefold.errors import CapacityError, ConfigError, InvariantError


def _run_with(monkeypatch: pytest.MonkeyPatch, action: Callable[[], int]) -> int:
    def run(_arguments: Sequence[str]) -> int:
        return action()

    monkeypatch.setattr(app_module, "run", run)
    return main(["anything"])


def _raise(error: BaseException) -> Callable[[], int]:
    def action() -> int:
        raise error

    return action


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["demo", "--nope"],
        ["demo", "surplus"],
        ["demo", "--block-size", "0"],
        ["demo", "--block-size", "many"],
        ["demo", "--cache-blocks", "-1"],
        ["demo", "--max-model-len", "1"],
        ["demo", "--threads", "0"],
        ["demo", "--position-offset", "-1"],
        ["generate"],
        ["generate", "--prompt"],
        ["generate", "--prompt", "x", "--repeat", "0"],
        ["generate", "--prompt", "x", "--max-tokens", "1.5"],
        ["generate", "--prompt", "x", "--temperature", "hot"],
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--max-tokens", "0", "max_tokens"),
        ("--max-tokens", "99999999999", "max_tokens"),
        ("--temperature", "-1", "temperature"),
        ("--temperature", "nan", "temperature"),
        ("--temperature", "inf", "temperature"),
        ("--top-p", "0", "top_p"),
        ("--top-p", "1.5", "top_p"),
        ("--top-k", "-3", "top_k"),
        ("--min-p", "2", "min_p"),
        ("--seed", "99999999999999999999", "seed"),
    ],
)
def test_absurd_sampling_is_refused_before_a_model_is_loaded(
    option: str, value: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # There is no such model, so only the sentence about the value can come first.
    assert main(["generate", "/nowhere", "--prompt", "x", option, value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert name in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"]])
def test_help_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "Usage: prefold" in out
    assert err == ""


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("prefold ")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("this\ncannot be"), "Error: this cannot be"),
        (CapacityError("no room"), "Error: no room"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "the disk is full (/x)"),
        (OSError(errno.EACCES, "Permission denied", "/x"), "Permission denied (/x)"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_can_go_wrong_is_a_sentence(
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run_with(monkeypatch, _raise(error)) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [InvariantError("a bug"), KeyError("a bug")])
def test_a_bug_is_not_dressed_up_as_bad_input(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)):
        _run_with(monkeypatch, _raise(error))


def _interrupt() -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return 0


def _interrupt_taken_for_another_error() -> int:
    try:
        _interrupt()
    except KeyboardInterrupt as error:
        raise ImportError("a library gave up") from error
    return 0


def _interrupt_swallowed() -> int:
    try:
        _interrupt()
    except KeyboardInterrupt:
        return 0
    return 0


@pytest.mark.parametrize(
    "action",
    [
        _interrupt,
        _interrupt_taken_for_another_error,
        _interrupt_swallowed,
        _raise(KeyboardInterrupt()),
    ],
)
def test_ctrl_c_is_one_line_and_exit_code_130(
    action: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert _run_with(monkeypatch, action) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_closed_pipe_is_no_error_message() -> None:
    command = [sys.executable, "-m", "prefold.cli.main", "--help"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(  # noqa: S603 -- our own program
        command,
        stdout=write_end,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


def test_options_arrive_where_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def load(module: str, name: str) -> Callable[[object], int]:
        seen.append((module, name))

        def run(options: object) -> int:
            seen.append(options)
            return 0

        return run

    monkeypatch.setattr(app_module, "load", load)
    arguments = "generate m -p x --raw --seed 3 --top-k 5 --repeat 2 --json --threads 1"
    assert main(arguments.split()) == 0
    assert seen[0] == ("prefold.cli.generate", "run_generate")
    text = repr(seen[1])
    for part in ("model='m'", "chat=False", "seed=3", "top_k=5", "repeat=2", "threads=1"):
        assert part in text
