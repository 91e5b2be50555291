"""``prefold advise`` as a program, on files as people have them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.traces import write_lines

pytestmark = pytest.mark.e2e

RULES = "".join(f"Rule {n}: be kind to customer number {n}. " for n in range(80))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefold.cli.main", "advise", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def rows(*, has_clock: bool, count: int = 200) -> list[dict[str, object]]:
    made = []
    for number in range(count):
        clock = f"The time is 09:{number // 60:02d}:{number % 60:02d}. "
        system = f"{clock if has_clock else ''}{RULES}"
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Where is order {number * 7919 % 1000}?"},
        ]
        made.append(
            {
                "body": {"model": "m", "messages": messages},
                "timestamp": 1_700_000_000 + number,
                "response": {"usage": {"prompt_tokens": 900, "completion_tokens": 20}},
            }
        )
    return made


def test_a_clock_is_named_with_its_share_and_what_moving_it_saves(tmp_path: Path) -> None:
    documents = []
    for has_clock in (True, False):
        path = write_lines(tmp_path / f"{has_clock}.jsonl.gz", rows(has_clock=has_clock))
        page = tmp_path / f"{has_clock}.html"
        done = run(str(path), "--json", "--report", str(page))
        assert done.returncode == 0, done.stderr
        assert page.read_text(encoding="utf-8").endswith("</html>\n")
        documents.append(json.loads(done.stdout))
    with_clock, without = documents
    [breaker] = with_clock["breakers"]
    assert breaker["kind"] == "clock"
    assert breaker["share"] == pytest.approx(199 / 200)
    assert without["breakers"] == []
    assert not with_clock["pays"]
    assert without["pays"]
    gained = without["hit_rate"] * without["prompt_tokens"]
    assert breaker["saved_tokens"] == pytest.approx(gained, rel=0.05)


def test_half_a_file_is_half_used_and_that_is_said(tmp_path: Path) -> None:
    data = gzip.compress(
        b"\n".join(json.dumps(row).encode() for row in rows(has_clock=True))
    )
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(data[: len(data) // 2])
    done = run(str(path))
    assert done.returncode == 0
    assert "the gzip data ends too early" in done.stderr
    assert "Traceback" not in done.stderr
    assert "could not be read" in done.stdout


def test_nothing_that_can_be_used_is_one_sentence(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", [{"a": 1}])
    done = run(str(path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert done.stdout == ""
