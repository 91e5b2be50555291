"""Traffic: a trace of block ids or a log of requests, read for advice.

Both become a trace; a log has its texts besides, which can be linted. What of the file was
used, what was not, and what had to be assumed is said in sentences.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from prefold.advisor.block_maker import BlockMaker
from prefold.advisor.prompt_log import LogAccount, LoggedPrompt, LogReading, read_log
from prefold.advisor.request_log import BYTES_PER_TOKEN
from prefold.advisor.trace import Trace, TraceRequest, cut_runs
from prefold.advisor.trace_formats import MADE_BLOCK_SIZE, TraceFormat, detect_format
from prefold.advisor.trace_lines import TraceProblem, TraceProblems, read_rows
from prefold.advisor.trace_reader import TraceOptions, read_trace

#: Token ids of a text.
Encode: TypeAlias = Callable[[str], Sequence[int]]

#: Rows that are looked at to tell the format: what stands in front may be no request.
_MAX_SNIFFED = 1000

_BYTES_PER_ID = 8
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was read.

    Attributes:
        prompts: Those of a log, in the order of ``trace``'s requests; empty for block ids.
        has_times: Whether every request says when it came.
        notes: What was used, what was not, and what was assumed; sentences.
        problems: The first of what could not be read.
        num_problems: All of it.
    """

    trace: Trace
    trace_format: TraceFormat
    prompts: Sequence[LoggedPrompt] = field(repr=False)
    has_times: bool
    notes: tuple[str, ...]
    problems: tuple[TraceProblem, ...]
    num_problems: int


def read_traffic(
    path: Path, options: TraceOptions | None = None, encode: Encode | None = None
) -> Traffic:
    """Read a trace or a log: JSON lines, plain or gzip.

    Args:
        path: The file.
        options: How it is to be read.
        encode: Makes token ids of a text; without it a token is taken to have 4 bytes.

    Raises:
        InvalidInputError: As ``read_trace`` or ``read_log``.
    """
    options = options or TraceOptions()
    found = options.trace_format or _sniff(path)
    if found is TraceFormat.OPENAI:
        return _from_log(path, options, encode)
    reading = read_trace(
        path,
        TraceOptions(
            trace_format=found,
            block_size=options.block_size,
            num_merged=options.num_merged,
            is_strict=options.is_strict,
        ),
    )
    trace = reading.trace
    notes = [f"{_number(len(trace.requests), 'request')} used."]
    if reading.num_problems:
        notes.append(
            f"{_number(reading.num_problems, 'row or value', 'rows or values')} "
            "could not be used as they stand."
        )
    if not any(request.num_output_tokens for request in trace.requests):
        notes.append(_NO_REPLIES)
    notes.append("There are no texts, so prompts are not linted.")
    return Traffic(
        trace=trace,
        trace_format=reading.trace_format,
        prompts=(),
        has_times=True,
        notes=tuple(notes),
        problems=reading.problems,
        num_problems=reading.num_problems,
    )


_NO_REPLIES = (
    "No reply's length is known, so decoding counts as taking no time; that makes hits "
    "look better than they are."
)


def _sniff(path: Path) -> TraceFormat | None:
    """Return the format of the first row that has one; None leaves the error to others."""
    rows = read_rows(path, TraceProblems(path, is_strict=False))
    for (_, row), _ in zip(rows, range(_MAX_SNIFFED), strict=False):
        found = detect_format(row)
        if found is not None:
            return found
    return None


# -- logs ----------------------------------------------------------------------------------


def _from_log(path: Path, options: TraceOptions, encode: Encode | None) -> Traffic:
    reading = read_log(path, is_strict=options.is_strict)
    block_size = (options.block_size or MADE_BLOCK_SIZE) * options.num_merged
    account = reading.account
    has_times = account.num_untimed == 0
    contents = _Contents(encode)
    maker = BlockMaker(block_size)
    requests = []
    for place, prompt in enumerate(reading.prompts):
        content, bytes_per_token = contents.of(prompt)
        num_tokens = prompt.num_prompt_tokens
        if num_tokens is None:
            num_tokens = -(-len(content) // bytes_per_token)
        # As in a server where nothing is approved for several tenants.
        owner = json.dumps([prompt.model, prompt.tenant])
        runs = maker.runs(owner, content, bytes_per_token)
        requests.append(
            TraceRequest(
                arrival_s=prompt.arrival_s
                if has_times and prompt.arrival_s
                else float(place),
                num_prompt_tokens=num_tokens,
                num_output_tokens=prompt.num_output_tokens,
                runs=cut_runs(runs, num_tokens // block_size),
                session=prompt.session,
                tenant=prompt.tenant,
            )
        )
    return Traffic(
        trace=Trace(name=reading.name, block_size=block_size, requests=requests),
        trace_format=TraceFormat.OPENAI,
        prompts=reading.prompts,
        has_times=has_times,
        notes=tuple(_notes(reading, has_tokenizer=encode is not None)),
        problems=reading.problems,
        num_problems=reading.num_problems,
    )


class _Contents:
    """Prompts as bytes; encodes each text once."""

    __slots__ = ("_encode", "_ids")

    def __init__(self, encode: Encode | None) -> None:
        self._encode = encode
        self._ids: dict[str, bytes] = {}

    def of(self, prompt: LoggedPrompt) -> tuple[bytes, int]:
        """Return a prompt, and how many of its bytes are a token."""
        if prompt.token_ids is not None:
            return prompt.token_ids.tobytes(), _BYTES_PER_ID
        texts = [segment.text for segment in prompt.segments]
        if self._encode is None:
            return "".join(texts).encode(errors="surrogatepass"), BYTES_PER_TOKEN
        return b"".join(map(self._encoded, texts)), _BYTES_PER_ID

    def _encoded(self, text: str) -> bytes:
        found = self._ids.get(text)
        if found is None:
            ids: npt.NDArray[np.int64] = np.array(
                [] if self._encode is None else self._encode(text), dtype=np.int64
            )
            found = self._ids[text] = ids.tobytes()
        return found


def _notes(reading: LogReading, *, has_tokenizer: bool) -> list[str]:
    account, num_prompts = reading.account, len(reading.prompts)
    notes = [
        f"{_number(account.num_rows, 'row')} read, {_number(num_prompts, 'prompt')} used."
    ]
    if account.skipped:
        notes.append(f"Rows passed over: {_listed(account.skipped)}.")
    unread = reading.num_problems - sum(account.skipped.values())
    if unread > 0:
        notes.append(
            f"{_number(unread, 'line or value', 'lines or values')} could not be read."
        )
    if not has_tokenizer:
        notes.append(
            f"There is no tokenizer, so {BYTES_PER_TOKEN} bytes of text count as a token; "
            "--tokenizer counts them as the model does."
        )
    tenants = {prompt.tenant for prompt in reading.prompts}
    return [*notes, *_gaps(account, num_prompts, tenants)]


def _gaps(
    account: LogAccount, num_prompts: int, tenants: AbstractSet[str | None]
) -> list[str]:
    notes = []
    if len(account.models) > 1:
        notes.append(
            f"There are {len(account.models)} models: {_listed(account.models)}. Their "
            "prompts share nothing, and the same costs are taken for all."
        )
    if len(tenants) > 1:
        notes.append(
            f"{len(tenants)} tenants: their prompts share nothing, as on a server where "
            "nothing is approved for several."
        )
    if account.num_untimed:
        notes.append(
            f"{_number(account.num_untimed, 'prompt')} of {num_prompts:,} without a time: "
            "the order of the file is taken for all, and nothing is said of rates and of "
            "memory over time."
        )
    if account.num_uncounted:
        notes.append(
            f"{_number(account.num_uncounted, 'prompt')} without a server's count of "
            "tokens: their length is counted here."
        )
    if account.num_without_reply == num_prompts:
        notes.append(_NO_REPLIES)
    elif account.num_without_reply:
        notes.append(
            f"{_number(account.num_without_reply, 'prompt')} without a reply's length: "
            "decoding counts as taking no time there."
        )
    if account.num_of_ids:
        notes.append(
            f"{_number(account.num_of_ids, 'prompt')} given as token ids: counted, and not "
            "linted."
        )
    if account.unused_fields:
        notes.append(f"Fields that nothing is known of: {_listed(account.unused_fields)}.")
    return notes


def _listed(counts: Mapping[str, int]) -> str:
    """Return the most frequent names with their counts."""
    ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    shown = [f"{name or '(no name)'} ({count:,})" for name, count in ranked[:_MAX_LISTED]]
    more = len(ranked) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _number(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
