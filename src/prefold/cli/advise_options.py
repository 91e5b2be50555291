"""Options of ``advise``, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseOptions:
    """What ``advise`` is to do.

    Attributes:
        source: A trace of block ids, or a log of requests.
        report: Where the page goes; None for none.
        capacity: Of the cache, such as "40GiB"; None for one that holds everything.
        machine_memory: All memory for KV that the machine has.
        ms_per_token: Of prefill, where nothing stands before.
        ms_per_1k_depth: A token's prefill more for every 1,000 tokens before it.
        ms_per_output_token: Of a step, divided by the replies that it goes on with.
        bytes_per_token: Of KV.
        tokenizer: A directory with the model's tokenizer; None for none.
        block_size: Tokens in a block; None tells it from the file, or takes 16.
        trace_format: A format's name; None tells it from the rows.
        is_strict: Refuse a file that has anything wrong with it.
    """

    source: Path
    report: Path | None
    capacity: str | None
    machine_memory: str
    ms_per_token: float
    ms_per_1k_depth: float
    ms_per_output_token: float
    bytes_per_token: float
    tokenizer: Path | None
    block_size: int | None
    trace_format: str | None
    is_strict: bool
    as_json: bool
