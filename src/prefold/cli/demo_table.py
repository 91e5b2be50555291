"""Table of the tour: its rows as lines, and as JSON.

A row is a title, a line of figures and notes, one below the other: eight columns of
figures leave no room for words beside them on a terminal of 80.
"""

from __future__ import annotations

from collections.abc import Sequence

from prefold.cli.console import format_bytes, format_seconds
from prefold.cli.demo_row import Exactness, Row

_WIDTHS = (11, 12, 9, 9, 7, 9, 9, 10)


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


HEADER = (
    _line(("prompt", "hit", "TTFT", "TTFT", "TTFT", "TPOT", "TPOT", "KV")),
    _line(("tokens", "tokens", "cold", "warm", "ratio", "cold", "warm", "held")),
)


def figures_line(row: Row) -> str:
    """Return the row's figures under the header's columns."""
    ratio = row.ttft_ratio
    # The first prompt of a row finds nothing; its note says so.
    hits = row.hit_tokens[1:] or row.hit_tokens
    return _line(
        (
            _range(row.prompt_tokens),
            _range(hits),
            _seconds(row.ttft_cold_s),
            _seconds(row.ttft_warm_s),
            "-" if ratio is None else f"{ratio:.1f}x",
            _seconds(row.tpot_cold_s),
            _seconds(row.tpot_warm_s),
            format_bytes(row.kv_bytes),
        )
    )


def exactness_line(exactness: Exactness) -> str:
    """Return the last line of the tour."""
    count = exactness.num_prompts
    if exactness.is_exact:
        return (
            f"Exactness: yes. All {count} prompts that ran both ways gave the same tokens "
            "and the same logits, bit for bit."
        )
    return (
        f"Exactness: NO. Of {count} prompts that ran both ways, "
        f"{exactness.num_same_tokens} gave the same tokens and {exactness.num_same_bits} "
        f"the same logits; the largest difference is {exactness.max_difference:.1e}."
    )


def row_to_json(row: Row) -> dict[str, object]:
    """Return the row as a value of plain lists, numbers and texts; times in seconds."""
    return {
        "row": row.key,
        "title": row.title,
        "prompt_tokens": list(row.prompt_tokens),
        "hit_tokens": list(row.hit_tokens),
        "ttft_cold_s": row.ttft_cold_s,
        "ttft_warm_s": row.ttft_warm_s,
        "ttft_ratio": row.ttft_ratio,
        "tpot_cold_s": row.tpot_cold_s,
        "tpot_warm_s": row.tpot_warm_s,
        "kv_bytes": row.kv_bytes,
        "compared_prompts": row.exactness.num_prompts,
        "same_tokens": row.exactness.num_same_tokens,
        "same_bits": row.exactness.num_same_bits,
        "notes": list(row.notes),
        "faults": list(row.faults),
    }


def compared_line(exactness: Exactness) -> str:
    """Return what the two ways of one row's prompts have in common."""
    count = exactness.num_prompts
    ran = f"{count} {'prompt' if count == 1 else 'prompts'} ran both ways"
    if exactness.is_exact:
        return f"{ran}: the same tokens, and the same logits bit for bit."
    return (
        f"{ran}: {exactness.num_same_tokens} with the same tokens, "
        f"{exactness.num_same_bits} with the same logits bit for bit."
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)
