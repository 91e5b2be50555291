"""Trace files cut off or spoilt anywhere: never a wrong request, never silence."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefold.advisor import TraceOptions, chat_trace, merge_blocks, read_trace
from prefold.advisor.trace import compress_ids, cut_runs, expand_runs
from prefold.blocks.table import TOKEN_DTYPE
from prefold.errors import InvalidInputError
from support.traces import facts_of, make_trace, prompts_of, shape_of, write_lines

TRACE = chat_trace(seed=3, num_requests=60)
ROWS = [
    {
        "t": request.arrival_s,
        "n": request.num_prompt_tokens,
        "o": request.num_output_tokens,
        "r": request.runs.tolist(),
        "s": request.session,
    }
    for request in TRACE.requests
]
FACTS = facts_of(TRACE)
OPTIONS = TraceOptions(block_size=16)


def test_what_was_written_is_read() -> None:
    with tempfile.TemporaryDirectory() as directory:
        reading = read_trace(write_lines(Path(directory, "a.jsonl.gz"), ROWS))
    assert reading.trace.block_size == 16
    assert facts_of(reading.trace) == FACTS


@pytest.mark.parametrize("zipped", [False, True])
@given(data=st.data())
def test_a_file_cut_off_anywhere(zipped: bool, data: st.DataObject) -> None:  # noqa: FBT001
    with tempfile.TemporaryDirectory() as directory:
        path = write_lines(Path(directory, "a.jsonl"), ROWS, zipped=zipped)
        whole = path.read_bytes()
        length = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:length])
        try:
            reading = read_trace(path, OPTIONS)
        except InvalidInputError as error:
            # Cut off before the end of the first request.
            assert str(path) in str(error)  # noqa: PT017
            assert zipped or length <= len(json.dumps(ROWS[0]))
            return
        read = facts_of(reading.trace)
        assert read == FACTS[: len(read)]
        # Text cut at a line's end has nothing to show for it.
        at_line_end = not zipped and (whole[length : length + 1] == b"\n")
        at_line_end |= not zipped and whole[length - 1 : length] == b"\n"
        assert reading.num_problems == (0 if at_line_end else 1)
        for problem in reading.problems:
            assert problem.line == len(read) + 1
            assert ("the gzip data ends too early" in problem.reason) == zipped


@given(data=st.data())
def test_a_spoilt_byte_costs_no_more_than_its_line(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = write_lines(Path(directory, "a.jsonl"), ROWS)
        spoilt = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(spoilt) - 1))
        spoilt[place] = data.draw(st.integers(0, 255))
        path.write_bytes(spoilt)
        read = facts_of(read_trace(path, OPTIONS).trace)
    # A line break that is gone joins two lines.
    assert len([fact for fact in FACTS if fact in read]) >= len(FACTS) - 2


IDS = st.lists(st.integers(0, 5), max_size=12)


@given(ids=IDS, length=st.integers(0, 14))
def test_runs_are_another_way_to_write_ids(ids: list[int], length: int) -> None:
    runs = compress_ids(np.array(ids, dtype=TOKEN_DTYPE))
    assert expand_runs(runs).tolist() == ids
    assert expand_runs(cut_runs(runs, length)).tolist() == ids[:length]
    assert len(runs) <= len(ids)


@given(prompts=st.lists(IDS, max_size=8), num_merged=st.integers(1, 4))
def test_merged_blocks_share_what_whole_groups_share(
    prompts: list[list[int]], num_merged: int
) -> None:
    merged = merge_blocks(make_trace(prompts), num_merged)
    groups: dict[tuple[int, ...], int] = {}
    expected = [
        [
            groups.setdefault(tuple(prompt[end - num_merged : end]), len(groups))
            for end in range(num_merged, len(prompt) + 1, num_merged)
        ]
        for prompt in prompts
    ]
    assert shape_of(prompts_of(merged)) == shape_of(expected)
    assert merged.block_size == 16 * num_merged
