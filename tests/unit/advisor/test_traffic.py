"""Traffic: what of a file was used, what was not, and what was assumed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from prefold.advisor.trace_formats import TraceFormat
from prefold.advisor.trace_reader import TraceOptions
from prefold.advisor.traffic import Traffic, read_traffic
from prefold.errors import InvalidInputError
from support.traces import write_lines


def chat(number: int, **more: object) -> dict[str, object]:
    messages = [
        {"role": "system", "content": "Be kind. " * 40},
        {"role": "user", "content": f"Question {number}"},
    ]
    return {"model": "a", "messages": messages, "time": 100.0 + number, **more}


def usage(prompt: int, reply: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": reply}


def said(traffic: Traffic) -> str:
    return " ".join(traffic.notes)


def test_a_log_becomes_a_trace_with_its_texts(tmp_path: Path) -> None:
    rows = [chat(n, usage=usage(120, 5), tenant="acme") for n in range(3)]
    traffic = read_traffic(write_lines(tmp_path / "log.jsonl.gz", rows))
    assert traffic.trace_format is TraceFormat.OPENAI
    assert traffic.trace.name == "log"
    assert traffic.has_times
    assert [it.arrival_s for it in traffic.trace.requests] == [100.0, 101.0, 102.0]
    first, second, _ = traffic.trace.requests
    assert (first.num_prompt_tokens, first.num_output_tokens) == (120, 5)
    assert (first.tenant, first.num_blocks) == ("acme", 6)
    shared = [its.block_ids()[:5].tolist() for its in (first, second)]
    assert shared[0] == shared[1]
    labels = [it.label for it in traffic.prompts[0].segments]
    assert labels == ["message 1 (system)", "message 2 (user)"]
    assert "3 rows read, 3 prompts used." in said(traffic)
    assert "no tokenizer" in said(traffic)
    assert "without a time" not in said(traffic)


def test_everything_that_is_not_used_is_told(tmp_path: Path) -> None:
    rows: list[object] = [
        {"canary": "x"},
        chat(1, usage=usage(50, 5), shard=7),
        chat(2),
        {"model": "e", "input": "text to embed"},
        {"model": "b", "messages": "none"},
        {"model": "b", "prompt": [1, 2, 3], "a weird \n name": 1},
        "{",
        {"model": "b", "messages": [{"role": "user", "content": None}]},
    ]
    traffic = read_traffic(write_lines(tmp_path / "log.jsonl", rows))
    notes = said(traffic)
    assert "7 rows read, 4 prompts used." in notes
    assert "no chat or completion request (2)" in notes
    assert "'messages' is no list of messages (1)" in notes
    assert "1 line or value could not be read." in notes
    assert "2 models: a (2), b (2)." in notes
    assert "2 prompts of 4 without a time" in notes
    assert not traffic.has_times
    assert [it.arrival_s for it in traffic.trace.requests] == [0.0, 1.0, 2.0, 3.0]
    assert "3 prompts without a server's count" in notes
    assert "3 prompts without a reply's length" in notes
    assert "1 prompt given as token ids" in notes
    assert "(other names) (1), shard (1)" in notes
    assert "weird" not in notes
    assert traffic.num_problems == 4


def test_requests_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    rows = [chat(5), chat(0), chat(3)]
    traffic = read_traffic(write_lines(tmp_path / "log.jsonl", rows))
    assert [it.arrival_s for it in traffic.trace.requests] == [100.0, 103.0, 105.0]
    assert [it.line for it in traffic.prompts] == [2, 3, 1]


def test_a_file_cut_off_is_used_up_to_there(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(json.dumps(chat(n)) for n in range(200)).encode())
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    traffic = read_traffic(path)
    assert 0 < len(traffic.prompts) < 200
    assert "could not be read" in said(traffic)
    assert any("ends too early" in it.reason for it in traffic.problems)
    with pytest.raises(InvalidInputError, match=r"gzip data ends too early|no valid JSON"):
        read_traffic(path, TraceOptions(is_strict=True))


def test_a_tokenizer_cuts_texts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", [chat(1), chat(2)])
    traffic = read_traffic(path, encode=lambda text: [ord(letter) for letter in text])
    first, _ = traffic.trace.requests
    assert first.num_prompt_tokens == sum(
        len(segment.text) for segment in traffic.prompts[0].segments
    )
    assert "no tokenizer" not in said(traffic)


def test_block_ids_have_no_texts(tmp_path: Path) -> None:
    rows = [{"t": 0, "n": 32, "r": [[0, 2]]}, {"t": 1, "n": 33, "r": [[0, 2]]}]
    path = write_lines(tmp_path / "trace.jsonl", [{"note": "a header"}, *rows])
    traffic = read_traffic(path, TraceOptions(block_size=16))
    assert traffic.trace_format is TraceFormat.COMPACT
    assert traffic.prompts == ()
    assert "not linted" in said(traffic)
    assert "1 row or value could not be used" in said(traffic)
    assert "No reply's length is known" in said(traffic)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        ([{"a": 1}], "no known trace format"),
        ([{"prompt": 5}], "no request with a prompt; the first problem is"),
    ],
)
def test_files_of_which_nothing_can_be_used(
    tmp_path: Path, rows: list[object], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_traffic(write_lines(tmp_path / "log.jsonl", rows))
