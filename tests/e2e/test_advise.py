"""``prefold advise`` as a program, on files as people have them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from prefold.engine.assembly import Silence
from prefold.engine.demo_model import ensure_demo_model
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


def test_a_model_s_own_tokenizer_counts_the_tokens(tmp_path: Path) -> None:
    model = ensure_demo_model(Silence())
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [
        f"{RULES}{text}"
        for text in ("Où est le colis ?", "订单在哪里", "Где заказ?", "x = [1, 2]\n" * 9)
    ]
    path = write_lines(tmp_path / "log.jsonl", [{"prompt": prompt} for prompt in prompts])
    documents = []
    for place in (model, model / "tokenizer.json"):
        done = run(str(path), "--json", "--tokenizer", str(place))
        assert done.returncode == 0, done.stderr
        documents.append(json.loads(done.stdout))
        assert not any("tokenizer" in note for note in documents[-1]["notes"])
    ids = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    document = documents[0]
    assert documents == 2 * [document]
    assert document["prompt_tokens"] == sum(map(len, ids))
    # Each finds the rules that the one before left behind, up to a block's end.
    num_rules = len(tokenizer.encode(RULES, add_special_tokens=False))
    hits = document["hit_rate"] * document["prompt_tokens"]
    assert 3 * (num_rules - 32) < hits <= 3 * num_rules
    without = json.loads(run(str(path), "--json").stdout)
    assert any("no tokenizer" in note for note in without["notes"])
    assert without["prompt_tokens"] != document["prompt_tokens"]


def test_a_broken_tokenizer_is_told_and_bytes_are_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", [{"prompt": RULES}] * 3)
    without = json.loads(run(str(path), "--json").stdout)
    for text in ("{}", "[1", '{"model": {"type": "BPE"}}'):
        (tmp_path / "tokenizer.json").write_text(text)
        done = run(str(path), "--json", "--tokenizer", str(tmp_path))
        assert done.returncode == 0
        assert "tokenizer.json is no tokenizer; 4 bytes count as" in done.stderr
        assert "Traceback" not in done.stderr
        assert json.loads(done.stdout)["prompt_tokens"] == without["prompt_tokens"]


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
