"""The command: its text, its one JSON object, its page, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefold.advisor import few_shot_trace
from prefold.cli.main import main
from support.processes import run_python
from support.traces import write_lines

RULES = "".join(f"Rule {n}: be kind to customer {n}. " for n in range(50))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    requests = few_shot_trace(seed=1, num_requests=150).requests
    rows = [
        {
            "t": request.arrival_s,
            "n": request.num_prompt_tokens,
            "o": request.num_output_tokens,
            "r": request.runs.tolist(),
            "tenant": f"tenant {number % 3}",
        }
        for number, request in enumerate(requests)
    ]
    return write_lines(tmp_path_factory.mktemp("traces") / "few.jsonl.gz", rows)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {
            "time": float(number),
            "messages": [
                {"role": "system", "content": f"It is 10:00:{number:02d}. {RULES}"},
                {"role": "user", "content": f"Question {number}"},
            ],
            "usage": {"prompt_tokens": 400, "completion_tokens": 4},
        }
        for number in range(40)
    ]
    return write_lines(tmp_path_factory.mktemp("logs") / "log.jsonl", rows)


def test_json_is_one_object(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(trace), "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    document = json.loads(out)
    assert (document["trace"], document["format"]) == ("few", "compact")
    assert (document["requests"], document["problems"]) == (150, 0)
    assert document["verdict"].startswith("It pays with a cache of ")
    assert document["hit_rate"] == document["curve"][-1]["hit_rate"] > 0
    assert [it["tenant"] for it in document["tenants"]] == [
        "tenant 0",
        "tenant 1",
        "tenant 2",
    ]
    assert sum(it["held_bytes"] for it in document["tenants"]) == pytest.approx(
        document["held_bytes"]
    )
    assert (len(document["best"]), len(document["worst"])) == (10, 10)
    assert (document["breakers"], document["is_linted"]) == ([], False)
    assert "Replaying" in err


def test_prices_and_sizes_count(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*more: str) -> dict[str, object]:
        assert main(["advise", str(trace), "--json", *more]) == 0
        document: dict[str, object] = json.loads(capsys.readouterr().out)
        return document

    plain, dear = ask(), ask("--machine-memory", "1GiB", "--bytes-per-token", "1e6")
    assert (plain["pays"], dear["pays"]) == (True, False)
    # No verdict on more than the machine has.
    assert dear["verdict_capacity_bytes"] <= 2**30  # type: ignore[operator]  # a number
    decoding = ask("--ms-per-output-token", "1000")
    assert decoding["reason"] == "decode_bound"
    small = ask("--capacity", "100MiB")
    assert small["hit_rate"] < plain["hit_rate"]  # type: ignore[operator]  # numbers
    assert small["peak_bytes"] <= 100 * 2**20  # type: ignore[operator]
    twice = ask("--ms-per-token", "0.2", "--ms-per-1k-depth", "0.02")
    assert twice["saved_ms"] == pytest.approx(2 * plain["saved_ms"])  # type: ignore[operator]


def test_the_text_names_the_clock(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(log)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("It does not pay")
    assert "1. the clock's seconds in message 1 (system)" in out
    assert "97.5% of the requests" in out
    assert "40 rows read, 40 prompts used." in out
    assert "There is no tokenizer" in out


def test_the_report_is_written(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    assert main(["advise", str(log), "--report", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "the clock" in text
    assert str(page) in capsys.readouterr().out.replace("\n", "")


def test_without_a_tokenizer_bytes_are_counted_and_that_is_said(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(log), "--tokenizer", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "there is no tokenizer.json" in err
    assert "4 bytes count as a token instead" in err
    assert any("no tokenizer" in note for note in json.loads(out)["notes"])


def test_problems_are_told_and_refused_in_strict_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "Be kind. " * 50}, *["{"] * 7])
    assert main(["advise", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["problems"] == 7
    assert f"{path}:2: no valid JSON at character 2\n" in err
    assert "... and 2 more" in err
    assert main(["advise", str(path), "--strict"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"Error: {path}:2: no valid JSON at character 2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "much"], "'much' is no memory size"),
        (["--capacity", "10B"], "less than a block"),
        (["--machine-memory", "0"], "must be at least 1 byte"),
        (["--bytes-per-token", "inf"], "must have more than 0 bytes"),
        (["--ms-per-token", "inf"], "what a token costs must be a number"),
        (["--format", "moon"], "did you mean 'mooncake'?"),
        (["--block-size", "512"], "blocks of 512 tokens do not fit"),
        (["--report", "/no/such/place.html"], "cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence(
    trace: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["advise", str(trace), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [sentence] = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert message in sentence
    assert "Traceback" not in err


def test_files_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = write_lines(tmp_path / "lengths.jsonl", [{"t": 0, "n": 5, "o": 1}])
    for path, message in [
        (lengths, "no block ids"),
        (write_lines(tmp_path / "empty.jsonl", []), "is empty"),
        (tmp_path / "missing", "cannot be read"),
    ]:
        assert main(["advise", str(path)]) == 2
        assert message in capsys.readouterr().err


_RUN = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from prefold.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_it_needs_no_torch(trace: Path) -> None:
    assert "hit_rate" in run_python(_RUN, "advise", str(trace), "--json")
