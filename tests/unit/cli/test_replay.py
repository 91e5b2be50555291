"""The command: its table, its one JSON object, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefold.advisor import CLAIRVOYANT, few_shot_trace
from prefold.cli.main import main
from prefold.eviction.registry import POLICIES
from support.processes import run_python
from support.traces import write_lines


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    requests = few_shot_trace(seed=1, num_requests=150).requests
    rows = [
        {
            "t": request.arrival_s,
            "n": request.num_prompt_tokens,
            "o": request.num_output_tokens,
            "r": request.runs.tolist(),
        }
        for request in requests
    ]
    return write_lines(tmp_path_factory.mktemp("traces") / "few.jsonl.gz", rows)


def test_json_is_one_object_with_every_policy_and_the_bound(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), "--capacities", "5%,30%,100", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert "Replaying lru at 5%" in err
    document = json.loads(out)
    assert (document["trace"], document["format"]) == ("few", "compact")
    assert (document["block_size"], document["requests"]) == (16, 150)
    assert document["problems"] == 0
    rows = document["results"]
    names = [*POLICIES, CLAIRVOYANT]
    assert [row["policy"] for row in rows] == names * 3
    assert [row["capacity"] for row in rows[:: len(names)]] == ["5%", "30%", "100"]
    by_name = {(row["capacity"], row["policy"]): row for row in rows}
    distinct = document["distinct_blocks"]
    assert by_name["5%", "lru"]["blocks"] == distinct * 5 // 100
    assert by_name["100", "lru"]["blocks"] == 100
    for row in rows:
        assert row["hit_tokens"] == pytest.approx(
            row["hit_rate"] * document["prompt_tokens"]
        )
        bound = by_name[row["capacity"], CLAIRVOYANT]
        assert row["hit_rate"] <= bound["hit_rate"]
        assert bound["gap_closed"] == 1.0
    assert by_name["5%", "lru"]["gap_closed"] == 0.0
    # A few prompts do not even fit.
    assert by_name["5%", "lru"]["evicted_blocks"] > 0


def test_the_table_has_a_row_a_policy_and_capacity(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--capacities", "10%,10%,30%", "--policies", "lru, lru", "--merge", "2"]
    assert main(["replay", str(trace), "--rank-by-cost", *arguments]) == 0
    first, header, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("few: 150 requests, ")
    assert first.endswith("distinct blocks of 32")
    assert header.split()[:3] == ["capacity", "blocks", "policy"]
    assert [row.split()[0] for row in rows[:2]] == ["10%", "30%"]
    assert all(" lru " in row for row in rows[:2])


def test_prompts_that_do_not_fit_are_counted(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(trace), "--capacities", "2"]) == 0
    assert "At 2, 150 prompts are larger than the cache" in capsys.readouterr().out


def test_problems_are_told_and_refused_in_strict_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"t": 0, "n": 32, "r": [[0, 2]]}
    path = write_lines(tmp_path / "a.jsonl", [good, *["{"] * 7])
    command = ["replay", str(path), "--block-size", "16", "--capacities", "1"]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["problems"] == 7
    assert f"{path}:2: no valid JSON at character 2\n" in err
    assert "... and 2 more" in err
    assert main([*command, "--strict"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"Error: {path}:2: no valid JSON at character 2\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "lur"], "no eviction policy 'lur'; did you mean 'lru'?"),
        (["--policies", ""], "there is no eviction policy ''"),
        (["--capacities", "0"], "a capacity of 0 holds nothing"),
        (["--capacities", "3%,0%"], "a capacity of 0% holds nothing"),
        (["--capacities", "-3"], "--capacities must be numbers of blocks"),
        (["--capacities", "1.5"], "--capacities must be numbers of blocks"),
        (["--capacities", "much"], "got 'much'"),
        (["--capacities", ""], "got ''"),
        (["--capacities", "999999"], "is more than the trace's"),
        (["--capacities", "100.1%"], "is more than the trace's"),
        (["--format", "moon"], "no trace format 'moon'; did you mean 'mooncake'?"),
        (["--format", "xyz"], "known: compact, sessions, mooncake, openai"),
        (["--format", "sessions"], "no request that can be read as sessions"),
        (["--block-size", "0"], "--block-size"),
        (["--block-size", "512"], "blocks of 512 tokens do not fit"),
        (["--merge", "0"], "--merge"),
        (["--merge", "5000"], "no prompt that fills a block of 80000 tokens"),
        (["--ms-per-token", "inf"], "a prefill cost must be a number"),
    ],
)
def test_a_mistake_is_one_line(
    trace: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", str(trace), *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert message in err


def test_files_of_which_nothing_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = write_lines(tmp_path / "lengths.jsonl", [{"t": 0, "n": 5, "o": 1}])
    empty = write_lines(tmp_path / "empty.jsonl", [])
    for path, message in [
        (lengths, "no block ids"),
        (empty, "is empty"),
        (tmp_path / "missing", "cannot be read"),
        (tmp_path, "cannot be read"),
    ]:
        assert main(["replay", str(path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert message in err


def test_a_replay_needs_no_torch(trace: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from prefold.cli.main import main\n"
        "sys.exit(main(['replay', sys.argv[1], '--capacities', '10%', '--json']))"
    )
    assert '"policy": "lru"' in run_python(code, str(trace))
