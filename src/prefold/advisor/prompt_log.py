"""Prompt log: the texts of logged requests, in segments, and what of a log was used.

A segment is what a prompt is made of by whoever sends it: its tools, each message, or all
of a plain prompt. It is written as the log has it, JSON with its keys in the order in which
they stand, since that is what breaks prefixes. What a template puts around is a line with
the role; how many tokens that takes is a little off.

Rows are those of ``request_log``. Texts stay in memory, each once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prefold.advisor.request_log import (
    find_body,
    find_time,
    find_usage,
    holds_body,
    label_in,
)
from prefold.advisor.trace_lines import TraceProblem, TraceProblems, read_rows
from prefold.advisor.trace_row import Row, RowError, read_count, read_label
from prefold.errors import InvalidInputError

#: Fields of a row that are read, or are known to say nothing about the prompt's KV.
_KNOWN = frozenset(
    {
        *(
            "messages",
            "prompt",
            "tools",
            "model",
            "usage",
            "response",
            "body",
            "request",
            "session",
            "tenant",
        ),
        *("timestamp", "time", "created_at", "created"),
        *(
            "stream",
            "stream_options",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "n",
            "stop",
            "seed",
            "user",
        ),
        *("max_tokens", "max_completion_tokens", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "logprobs", "top_logprobs", "tool_choice", "parallel_tool_calls"),
        *(
            "response_format",
            "echo",
            "suffix",
            "best_of",
            "id",
            "object",
            "url",
            "method",
            "custom_id",
        ),
        *("metadata", "store", "service_tier", "cache", "cache_salt"),
    }
)
_NAME = re.compile(r"[\w.-]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a prompt.

    Attributes:
        label: Which, such as "tools" or "message 1 (system)".
    """

    label: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPrompt:
    """One prompt of a log.

    Attributes:
        line: Of the log, counted from 1.
        arrival_s: None where the log does not say.
        segments: Empty for a prompt that was given as token ids.
        token_ids: Those, as int64; None for a text.
        num_prompt_tokens: As the server counted them; None where it does not say.
    """

    line: int
    arrival_s: float | None
    model: str
    tenant: str | None
    session: str | None
    segments: tuple[Segment, ...] = field(repr=False)
    token_ids: np.ndarray[tuple[int], np.dtype[np.int64]] | None = field(repr=False)
    num_prompt_tokens: int | None
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAccount:
    """What of a log was used, and what was not.

    Attributes:
        num_rows: Rows that are JSON objects.
        skipped: How many of them were passed over, by reason.
        models: Prompts by model.
        unused_fields: Rows that have a field nothing is known of, by its name; names
            that could be anything are one.
        num_untimed: Prompts without a time.
        num_uncounted: Prompts for which no server says how many tokens they have.
        num_without_reply: Prompts of which the length of the reply is not known.
        num_of_ids: Prompts given as token ids.
    """

    num_rows: int
    skipped: Mapping[str, int]
    models: Mapping[str, int]
    unused_fields: Mapping[str, int]
    num_untimed: int
    num_uncounted: int
    num_without_reply: int
    num_of_ids: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """A log's prompts in order of arrival, and what became of the rest.

    Attributes:
        problems: The first of what was passed over.
        num_problems: All of it.
    """

    name: str
    prompts: tuple[LoggedPrompt, ...] = field(repr=False)
    account: LogAccount
    problems: tuple[TraceProblem, ...]
    num_problems: int


def read_log(path: Path, *, is_strict: bool = False) -> LogReading:
    """Read a request log: JSON lines, plain or gzip.

    Prompts are put in the order of their times if all have one; those of one instant, and
    all where a time is missing, stay in the order of the file.

    Raises:
        InvalidInputError: It cannot be read, has no prompts, or, in strict mode, has
            anything wrong with it.
    """
    problems = TraceProblems(path, is_strict=is_strict)
    log = _Log(problems)
    prompts = list(log.prompts(path))
    if not prompts:
        first = f"; the first problem is: {problems.listed[0].describe()}"
        raise InvalidInputError(
            f"{path} has no request with a prompt{first if problems.listed else ''}"
        )
    times = [it.arrival_s for it in prompts if it.arrival_s is not None]
    if len(times) == len(prompts):
        order = sorted(range(len(times)), key=times.__getitem__)
        prompts = [prompts[place] for place in order]
    return LogReading(
        name=path.name.removesuffix(".gz").removesuffix(".jsonl"),
        prompts=tuple(prompts),
        account=log.account(),
        problems=tuple(problems.listed),
        num_problems=problems.num_found,
    )


class _Log:
    """One pass through a log; counts what it meets."""

    def __init__(self, problems: TraceProblems) -> None:
        self._problems = problems
        self._texts: dict[str, str] = {}
        self._num_rows = 0
        self._skipped: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._unused: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()

    def prompts(self, path: Path) -> Iterator[LoggedPrompt]:
        for number, row in read_rows(path, self._problems):
            self._num_rows += 1
            try:
                if not holds_body(row):
                    raise RowError("no chat or completion request")  # noqa: TRY301 -- as below
                found = list(self._read(number, row))
            except RowError as error:
                self._skipped[str(error)] += 1
                self._problems.note(number, str(error))
                continue
            for name in row.keys() - _KNOWN:
                self._unused[name if _NAME.fullmatch(name) else "(other names)"] += 1
            yield from found

    def _read(self, line: int, row: Row) -> Iterator[LoggedPrompt]:
        body = find_body(row)
        model = read_label(body, "model") or ""
        usage = find_usage(row) or {}
        arrival_s = find_time(row, body)
        prompts = list(_prompts(body))
        # Of several prompts in one body, usage is the sum.
        counted = read_count(usage, "prompt_tokens") if "prompt_tokens" in usage else None
        for segments, token_ids in prompts:
            self._models[model] += 1
            self._missing["time"] += arrival_s is None
            self._missing["tokens"] += counted is None or len(prompts) > 1
            self._missing["reply"] += "completion_tokens" not in usage
            self._missing["text"] += token_ids is not None
            yield LoggedPrompt(
                line=line,
                arrival_s=arrival_s,
                model=model,
                tenant=label_in(row, body, "tenant"),
                session=label_in(row, body, "session"),
                segments=tuple(self._once(it) for it in segments),
                token_ids=token_ids,
                num_prompt_tokens=counted if len(prompts) == 1 else None,
                num_output_tokens=read_count(usage, "completion_tokens", 0) // len(prompts),
            )

    def _once(self, segment: Segment) -> Segment:
        text = self._texts.setdefault(segment.text, segment.text)
        return Segment(label=segment.label, text=text)

    def account(self) -> LogAccount:
        return LogAccount(
            num_rows=self._num_rows,
            skipped=dict(self._skipped),
            models=dict(self._models),
            unused_fields=dict(self._unused),
            num_untimed=self._missing["time"],
            num_uncounted=self._missing["tokens"],
            num_without_reply=self._missing["reply"],
            num_of_ids=self._missing["text"],
        )


_Prompt = tuple[list[Segment], "np.ndarray[tuple[int], np.dtype[np.int64]] | None"]


def _prompts(body: Row) -> Iterator[_Prompt]:
    if "messages" in body:
        messages = body["messages"]
        if not isinstance(messages, list) or not messages:
            raise RowError("'messages' is no list of messages")
        tools = body.get("tools")
        yield [*_tools(tools), *map(_message, range(1, len(messages) + 1), messages)], None
        return
    prompt = body.get("prompt")
    is_batch = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    for each in prompt if is_batch and isinstance(prompt, list) else [prompt]:
        yield _plain(each)


def _plain(prompt: object) -> _Prompt:
    if isinstance(prompt, str):
        return [Segment(label="prompt", text=prompt)], None
    if isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        try:
            return [], np.array(prompt, dtype=np.int64)
        except OverflowError as error:
            raise RowError("'prompt' has an id that no vocabulary has") from error
    raise RowError("there are no 'messages', and 'prompt' is neither text nor token ids")


def _tools(tools: object) -> Sequence[Segment]:
    # Templates write the tools in front.
    if not isinstance(tools, list) or not tools:
        return []
    return [Segment(label="tools", text=_json(tools))]


def _message(number: int, message: object) -> Segment:
    if not isinstance(message, dict):
        raise RowError("'messages' has something that is no message")
    role = message.get("role")
    role = role if isinstance(role, str) and _NAME.fullmatch(role) else "unknown"
    parts = [role, *_content(message.get("content"))]
    rest = {
        name: value
        for name, value in message.items()
        if name not in {"role", "content"} and value is not None
    }
    if rest:
        parts.append(_json(rest))
    return Segment(label=f"message {number} ({role})", text="\n".join(parts) + "\n")


def _content(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else None
            yield text if isinstance(text, str) else _json(part)
    elif content is not None:
        yield _json(content)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
