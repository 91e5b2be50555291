"""Trace files: what each format says, and what is said of files that are not right."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from prefold.advisor import TraceFormat, TraceOptions, read_trace, trace_lines
from prefold.errors import InvalidInputError
from support.traces import facts_of, prompts_of, shape_of, write_lines

COMPACT = [
    {"t": 0.0, "n": 70, "o": 5, "r": [[7, 2], [40, 2]], "s": 3},
    {"t": 1.5, "n": 64, "o": 6, "r": [[7, 3], [9, 1]], "s": 3, "tenant": "acme"},
    {"t": 2.0, "n": 15, "o": 0, "r": []},
]


def read(path: Path, **options: object) -> tuple[list[list[int]], list[str]]:
    reading = read_trace(path, TraceOptions(**options))  # type: ignore[arg-type]
    assert reading.num_problems == len(reading.problems)
    problems = [problem.describe() for problem in reading.problems]
    return prompts_of(reading.trace), problems


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read_trace(path, TraceOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- formats ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz", "zipped.jsonl"])
def test_compact_rows(tmp_path: Path, name: str) -> None:
    zipped = not name.startswith("trace.jsonl") or name.endswith(".gz")
    path = write_lines(tmp_path / name, COMPACT, zipped=zipped)
    reading = read_trace(path)
    assert reading.trace_format is TraceFormat.COMPACT
    assert reading.trace.block_size == 16
    assert reading.trace.name == name.split(".", maxsplit=1)[0]
    assert facts_of(reading.trace) == [
        (0.0, 70, 5, "3", None, [7, 8, 40, 41]),
        (1.5, 64, 6, "3", "acme", [7, 8, 9, 9]),
        (2.0, 15, 0, None, None, []),
    ]
    assert reading.num_problems == 0


def test_a_last_partial_block_is_dropped(tmp_path: Path) -> None:
    rows = [{"t": 0, "n": 1000 + n, "r": [[0, 63], [100 + n, 0 + 1]]} for n in range(8, 24)]
    prompts, problems = read(write_lines(tmp_path / "a.jsonl", rows), block_size=16)
    assert problems == []
    for prompt, row in zip(prompts, rows, strict=True):
        assert len(prompt) == int(row["n"]) // 16  # type: ignore[call-overload]


def test_a_header_says_the_block_size(tmp_path: Path) -> None:
    rows = [{"block_size": 24}, {"t": 0, "n": 48, "r": [[0, 2]]}]
    reading = read_trace(write_lines(tmp_path / "a.jsonl", rows))
    assert reading.trace.block_size == 24
    assert prompts_of(reading.trace) == [[0, 1]]


def test_a_header_that_is_none_is_reported(tmp_path: Path) -> None:
    rows = [{"block_size": "24"}, {"t": 0, "n": 48, "r": [[0, 2]]}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    prompts, problems = read(path, block_size=24)
    assert prompts == [[0, 1]]
    assert problems == [f"{path}:1: 'block_size' is no whole number above 0"]


def test_sessions_have_ids_and_clocks_of_their_own(tmp_path: Path) -> None:
    rows = [
        {
            "id": "one",
            "req": [
                {"t": 0.0, "n": 640, "o": 1, "r": [[1, 10]]},
                {"t": 9.0, "n": 704, "o": 1, "r": [[1, 11]]},
            ],
        },
        {"id": "two", "req": [{"t": 4.0, "n": 704, "o": 1, "r": [[1, 11]]}]},
    ]
    reading = read_trace(write_lines(tmp_path / "a.jsonl.gz", rows))
    assert reading.trace_format is TraceFormat.SESSIONS
    assert reading.trace.block_size == 64
    assert [(each.arrival_s, each.session) for each in reading.trace.requests] == [
        (0.0, "one"),
        (4.0, "two"),
        (9.0, "one"),
    ]
    first, other, second = prompts_of(reading.trace)
    assert second[:10] == first
    assert not set(other) & set(second)


def test_mooncake_rows(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1030, "output_length": 9, "hash_ids": [4, 5, 6]},
        {"timestamp": 27482, "input_length": 1024, "output_length": 2, "hash_ids": [4, 9]},
    ]
    reading = read_trace(write_lines(tmp_path / "a.jsonl", rows))
    assert reading.trace_format is TraceFormat.MOONCAKE
    assert reading.trace.block_size == 512
    assert facts_of(reading.trace) == [
        (0.0, 1030, 9, None, None, [4, 5]),
        (27.482, 1024, 2, None, None, [4, 9]),
    ]


def test_merged_blocks_are_equal_where_all_before_is(tmp_path: Path) -> None:
    rows = [
        {"t": 0, "n": 80, "r": [[0, 5]]},
        {"t": 1, "n": 80, "r": [[0, 3], [9, 2]]},
        {"t": 2, "n": 64, "r": [[8, 1], [1, 3]]},
        {"t": 3, "n": 80, "r": [[0, 5]]},
    ]
    reading = read_trace(
        write_lines(tmp_path / "a.jsonl", rows), TraceOptions(num_merged=2)
    )
    assert reading.trace.block_size == 32
    one, two, three, four = prompts_of(reading.trace)
    assert [len(prompt) for prompt in (one, two, three, four)] == [2, 2, 2, 2]
    assert one == four
    assert one[0] == two[0]
    # Blocks 2 and 3 of the third are the first's, but what is before them is not.
    assert len({one[1], two[1], *three}) == 4


# -- request logs ----------------------------------------------------------------------


def chat(*texts: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **more}


LONG = "the same long beginning " * 20


def test_a_log_of_chats_shares_what_begins_alike(tmp_path: Path) -> None:
    rows = [
        chat(LONG, "one" * 40, timestamp=1_700_000_000),
        chat(LONG, "two" * 40, timestamp="2023-11-14T22:13:21Z"),
        {"body": chat(LONG, model="other"), "timestamp": 1_700_000_003_000},
    ]
    reading = read_trace(write_lines(tmp_path / "a.jsonl", rows))
    assert reading.trace_format is TraceFormat.OPENAI
    one, two, other = prompts_of(reading.trace)
    assert one[:7] == two[:7]
    assert one != two
    assert not set(one) & set(other)
    at = [request.arrival_s for request in reading.trace.requests]
    assert at == [1_700_000_000, 1_700_000_001, 1_700_000_003]


def test_usage_says_how_long_a_prompt_is(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 7}
    rows = [
        chat(LONG, response={"body": {"usage": usage}}),
        chat(LONG, usage=usage),
        chat(LONG),
    ]
    reading = read_trace(write_lines(tmp_path / "a.jsonl", rows))
    first, second, third = reading.trace.requests
    for request in (first, second):
        assert (request.num_prompt_tokens, request.num_output_tokens) == (40, 7)
        assert request.num_blocks == 2
    assert third.num_prompt_tokens > 100
    assert [request.arrival_s for request in reading.trace.requests] == [0.0, 1.0, 2.0]


def test_token_ids_are_exact_and_apart_from_text(tmp_path: Path) -> None:
    ids = list(range(40))
    rows: list[object] = [
        {"prompt": ids},
        {"prompt": [*ids[:16], 99, *ids[17:]]},
        {"prompt": ["a" * 64, "a" * 70]},
        {"prompt": [ids, ids]},
    ]
    reading = read_trace(write_lines(tmp_path / "a.jsonl", rows))
    prompts = prompts_of(reading.trace)
    assert [len(prompt) for prompt in prompts] == [2, 2, 1, 1, 2, 2]
    assert prompts[0][0] == prompts[1][0]
    assert prompts[0][1] != prompts[1][1]
    assert prompts[2] == prompts[3]
    assert prompts[4] == prompts[5] == prompts[0]
    assert [each.num_prompt_tokens for each in reading.trace.requests][:3] == [40, 40, 16]


def test_tools_stand_in_front(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f" * 200}}]
    rows = [chat("one" * 50, tools=tools), chat("two" * 50, tools=tools)]
    one, two = prompts_of(read_trace(write_lines(tmp_path / "a.jsonl", rows)).trace)
    assert one[:3] == two[:3]


# -- what is wrong with a line ---------------------------------------------------------

GOOD = {"t": 5.0, "n": 32, "o": 1, "r": [[0, 2]]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"t": 5.0, "n": 32, "r": [[0,', "no valid JSON at character"),
        ('"secret"', "no JSON object"),
        ("[1]", "no JSON object"),
        (b'{"t": "\xff\xfe"}', "no valid JSON"),
        ("[" * 100_000, "no valid JSON"),
        ('{"n": ' + "9" * 5000 + "}", "no valid JSON"),
        ({**GOOD, "t": None}, "'t' is missing or no number"),
        ({**GOOD, "t": True}, "'t' is missing or no number"),
        ({**GOOD, "t": -1}, "'t' is no time"),
        ({**GOOD, "t": float("nan")}, "'t' is no time"),
        ({**GOOD, "t": 10**400}, "'t' is no time"),
        ({**GOOD, "n": "secret"}, "'n' is missing or no whole number"),
        ({**GOOD, "n": 1.5}, "'n' is missing or no whole number"),
        ({**GOOD, "n": 2**40}, "'n' is not from 0 to 2147483647"),
        ({**GOOD, "o": -1}, "'o' is not from 0 to 2147483647"),
        ({**GOOD, "s": ["secret"]}, "'s' is neither a string nor a whole number"),
        ({**GOOD, "r": "secret"}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[0, 2, 3]]}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[0, 0]]}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[-1, 2]]}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[0, 1.0]]}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[2**63, 1]]}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[0, 2**30]]}, "'r' is no list of [first block id, count]"),
        ({**GOOD, "r": [[0, 2**24], [0, 1]]}, "'r' has more than 16777216 blocks"),
        ({"t": 5.0, "n": 32}, "no block ids"),
        ({**GOOD, "t": 4.0}, "arrives before the request in front of it"),
    ],
)
def test_a_bad_line_is_reported_by_place_and_reason(
    tmp_path: Path, row: object, reason: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [GOOD, "", row, GOOD])
    prompts, [problem] = read(path, block_size=16)
    assert problem.startswith(f"{path}:3: {reason}")
    assert "secret" not in problem
    # What only stands in the wrong place is served in its own.
    assert prompts == [[0, 1]] * (3 if "arrives" in reason else 2)
    assert refusal(path, block_size=16, is_strict=True) == problem


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"hash_ids": [1], "timestamp": 1}, "'input_length' is missing"),
        ({"hash_ids": 3, "timestamp": 1, "input_length": 9}, "'hash_ids' is no list"),
        ({"hash_ids": [True], "timestamp": 1, "input_length": 9}, "'hash_ids' is no list"),
        ({"hash_ids": [-1], "timestamp": 1, "input_length": 9}, "'hash_ids' has an id"),
        ({"hash_ids": [2**62 + 1], "timestamp": 1, "input_length": 9}, "'hash_ids' has"),
        ({"timestamp": 1, "input_length": 9}, "no block ids"),
    ],
)
def test_a_bad_mooncake_line(tmp_path: Path, row: object, reason: str) -> None:
    good = {"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
    path = write_lines(tmp_path / "a.jsonl", [good, row])
    prompts, [problem] = read(path)
    assert prompts == [[1]]
    assert problem.startswith(f"{path}:2: {reason}")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "'messages' is no list of messages"),
        ({"messages": "secret"}, "'messages' is no list of messages"),
        ({"prompt": {"secret": 1}}, "there are no 'messages', and 'prompt' is neither"),
        ({"prompt": [1, "secret"]}, "there are no 'messages', and 'prompt' is neither"),
        ({"prompt": [2**70]}, "'prompt' has an id that no vocabulary has"),
        ({"prompt": "a", "timestamp": "secret"}, "'timestamp' is no time"),
        ({"prompt": "a", "created": [1]}, "'created' is missing or no number"),
        ({"prompt": "a", "model": ["secret"]}, "'model' is neither"),
        (
            {"prompt": "a", "usage": {"prompt_tokens": "secret"}},
            "'prompt_tokens' is missing",
        ),
    ],
)
def test_a_bad_log_line(tmp_path: Path, row: object, reason: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "x" * 64}, row])
    prompts, [problem] = read(path)
    assert prompts == [[0]]
    assert problem.startswith(f"{path}:2: {reason}")
    assert "secret" not in problem


def test_a_bad_request_of_a_session_leaves_the_others(tmp_path: Path) -> None:
    good = {"t": 1, "n": 32, "r": [[0, 2]]}
    rows = [{"req": [good, {**good, "n": None}, 7, good, {"t": 2, "n": 5}]}, {"req": 3}]
    path = write_lines(tmp_path / "a.jsonl", rows)
    prompts, problems = read(path, block_size=16)
    assert prompts == [[0, 1], [0, 1]]
    assert problems == [
        f"{path}:1: request 2: 'n' is missing or no whole number",
        f"{path}:1: request 3: no JSON object",
        f"{path}:1: no block ids",
        f"{path}:2: 'req' is missing or no list",
    ]


def test_a_line_without_end_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_lines, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(trace_lines, "_CHUNK_BYTES", 64)
    path = write_lines(tmp_path / "a.jsonl", [GOOD, "x" * 1001, GOOD])
    prompts, problems = read(path, block_size=16)
    assert prompts == [[0, 1], [0, 1]]
    assert problems == [f"{path}:2: longer than 1000 bytes"]


def test_problems_beyond_the_first_are_counted(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [GOOD, *["{"] * 250])
    reading = read_trace(path, TraceOptions(block_size=16))
    assert reading.num_problems == 250
    assert len(reading.problems) == trace_lines.MAX_LISTED_PROBLEMS


def test_requests_are_sorted_and_ties_stay(tmp_path: Path) -> None:
    rows = [{"t": t, "n": 16, "r": [[i, 1]]} for i, t in enumerate([3, 1, 3, 2, 1])]
    prompts, problems = read(write_lines(tmp_path / "a.jsonl", rows), block_size=16)
    assert prompts == [[1], [4], [3], [0], [2]]
    assert len(problems) == 3


# -- gzip ------------------------------------------------------------------------------


def test_gzip_members_may_follow_one_another(tmp_path: Path) -> None:
    member = gzip.compress(json.dumps(GOOD).encode() + b"\n")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(member + member + b"\0" * 512)
    assert read(path, block_size=16) == ([[0, 1], [0, 1]], [])


def test_a_missing_end_of_gzip_is_noticed_after_the_last_line(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps(GOOD).encode() + b"\n")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data[:-4])
    prompts, problems = read(path, block_size=16)
    assert prompts == [[0, 1]]
    assert problems == [f"{path}:2: the gzip data ends too early, here"]


def test_damaged_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    data = gzip.compress("".join(json.dumps(GOOD) + "\n" for _ in range(3)).encode())
    path = tmp_path / "a.jsonl.gz"
    # The last bytes are a checksum of all that came before.
    path.write_bytes(data[:-8] + bytes(byte ^ 1 for byte in data[-8:]))
    prompts, problems = read(path, block_size=16)
    assert prompts == [[0, 1]] * 3
    assert problems == [f"{path}:4: the gzip data is damaged from here on"]
    path.write_bytes(data + b"what is this")
    prompts, problems = read(path, block_size=16)
    assert (len(prompts), len(problems)) == (3, 1)


# -- files of which nothing can be replayed --------------------------------------------


@pytest.mark.parametrize("rows", [[], ["", "  "]])
def test_an_empty_file(tmp_path: Path, rows: list[object]) -> None:
    for name in ("a.jsonl", "a.jsonl.gz"):
        path = write_lines(tmp_path / name, rows)
        assert refusal(path) == f"{path} is empty: it has no requests"


def test_arrival_and_length_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"t": 0, "n": 5, "o": 1}] * 3)
    assert "has arrival times and lengths but no block ids" in refusal(path)


def test_an_unknown_format(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"secret": 1}])
    message = refusal(path)
    assert "is of no known trace format" in message
    assert "secret" not in message


def test_another_format_than_said(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", COMPACT)
    message = refusal(path, trace_format=TraceFormat.MOONCAKE)
    assert "no request that can be read as mooncake" in message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path / "missing")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


def test_a_block_size_that_does_not_fit(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", COMPACT)
    assert "blocks of 64 tokens do not fit" in refusal(path, block_size=64)
    assert "at least 1 token" in refusal(path, block_size=0)
    assert "at least 1 block makes a merged one" in refusal(path, num_merged=0)


def test_a_block_size_that_cannot_be_told(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"t": 0, "n": 5, "r": [[0, 1]]}])
    assert "give the block size" in refusal(path)


def test_shapes_are_compared_by_what_is_shared() -> None:
    assert shape_of([[5, 6], [5, 7]]) == shape_of([[1, 2], [1, 9]])
    assert shape_of([[5, 6], [5, 7]]) != shape_of([[5, 6], [4, 7]])


@pytest.mark.parametrize("text", ["[{}]\n", "{\n}\n", "no JSON\n"])
def test_a_file_of_another_kind_is_refused_by_what_a_trace_is(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="one JSON object on each line"):
        read_trace(path)
