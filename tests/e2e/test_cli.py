"""The commands on a tiny model, as a user would run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from prefold.cli.main import main
from prefold.engine.engine import Engine
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

#: Small enough for every machine; the default is a share of its memory.
CACHE = ["--cache-blocks", "256"]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Undo what commands change in their process."""
    environment, num_threads = dict(os.environ), torch.get_num_threads()
    yield
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def _own_directories(
    _as_before: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PREFOLD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_model(
        make_llama(max_position_embeddings=1024), tmp_path_factory.mktemp("llama")
    )
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


def _generate(model: Path, *arguments: str) -> int:
    return main(["generate", str(model), *CACHE, *arguments])


def test_the_second_request_hits_and_answers_the_same(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prompt", "the order " * 20, "--repeat", "2", "--max-tokens", "6"]
    assert _generate(model, *arguments, "--json") == 0
    out, _ = capsys.readouterr()
    document = json.loads(out)
    assert out.count("\n") == 1
    first, second = document["requests"]
    assert first["hit_tokens"] == 0
    assert 1 <= second["prompt_tokens"] - second["hit_tokens"] <= 4
    assert first["token_ids"] == second["token_ids"]
    assert document["loaded"]["cache_blocks"] == 256


@pytest.mark.parametrize(("prompt", "code"), [("x", 0), ("x " * 2000, 2)])
def test_the_engine_is_closed(
    prompt: str, code: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Engine] = []

    def close(engine: Engine) -> None:
        closed.append(engine)

    monkeypatch.setattr(Engine, "close", close)
    assert _generate(model, "--prompt", prompt, "--max-tokens", "2") == code
    assert len(closed) == 1


def test_the_tour_runs_on_any_model(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Threads cost more than they bring at this size; nothing need be evicted.
    cache = ["--cache-blocks", "1024"]
    assert main(["demo", "--model", str(model), *cache, "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exactness"]["identical"] is True
    assert document["as_expected"] is True
    assert len(document["rows"]) == 7


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", ""],
        ["--prompt", "x " * 2000],
        ["--prompt", "x " * 100, "--cache-blocks", "2"],
        ["--prompt", "x", "--max-model-len", "5000"],
        ["--prompt", "x", "--cache-memory", "lots"],
        ["--prompt", "x", "--cache-memory", "1KB", "--cache-blocks", "3"],
        ["--prompt", "x", "--dtype", "float7"],
        ["--prompt", "x", "--device", "abacus"],
        ["--prompt", "x", "--position-offset", "2000"],
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _generate(model, *arguments, "--json") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("Error: ")
    assert err.count("Error") == 1


def test_an_unknown_path_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert _generate(missing, "--prompt", "x") == 2
    _assert_only_sentence(capfd, str(missing))


def test_an_empty_directory_is_no_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _generate(tmp_path, "--prompt", "x") == 2
    _assert_only_sentence(capfd, str(tmp_path))


def test_a_model_without_a_tokenizer_is_one_sentence(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in model.iterdir():
        if "token" not in path.name and path.suffix != ".jinja":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert _generate(tmp_path, "--prompt", "x") == 2
    _assert_only_sentence(capfd, "tokenizer")


def test_damaged_weights_are_one_sentence(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    assert _generate(tmp_path, "--prompt", "x") == 2
    _assert_only_sentence(capfd, "weights")


def test_a_demo_model_that_cannot_be_kept_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PREFOLD_CACHE_DIR", str(tmp_path / "file"))
    assert main(["demo"]) == 2
    _assert_only_sentence(capfd, "the demo model")


def _assert_only_sentence(capfd: pytest.CaptureFixture[str], words: str) -> None:
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("Error: ")
    assert words in last


@pytest.mark.parametrize("awaited", ["Loading the model", "tokens ..."])
def test_ctrl_c_is_one_line(awaited: str, model: Path) -> None:
    command = [sys.executable, "-m", "prefold.cli.main", "generate", str(model), *CACHE]
    process = subprocess.Popen(  # noqa: S603 -- our own program
        [*command, "--prompt", "x", "--max-tokens", "1000", "--temperature", "5", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stderr is not None
        seen = ""
        while awaited not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen = line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in err
