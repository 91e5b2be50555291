"""Admin tables: answers of the admin plane, for people."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefold.cli.admin_options import AdminAction
from prefold.cli.miss_tables import explanation_lines, miss_rows

#: Where nothing says how wide the output is: nobody wants lines cut in a pipe.
_PIPE_WIDTH = 400

#: What text of prompts must not do to a terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_APPROVAL = ("id", "domain", "label", "tokens", "blocks", "pinned", "expires_in_s")
_ADAPTER = ("name", "rank", "num_layers", "open_requests", "is_leaving", "digest", "path")
_SHARE = ("tenant", "domain", "idle_blocks", "reserved_blocks", "max_idle_blocks")
_RUN = ("id", "domain", "start", "tokens", "blocks", "hits", "idle_s", "pinned", "children")

_TENANT_WORTH = (
    "tenant",
    "requests",
    "repetition_rate",
    "hit_rate",
    "saved_ms",
    "held_byte_seconds",
    "eviction_ms",
    "break_even_per_s",
)
_PREFIX_WORTH = (
    "domain",
    "begin_token",
    "end_token",
    "requests",
    "saved_ms",
    "reuses_per_s",
    "break_even_per_s",
    "pays",
)

#: Of a run's text, in characters.
_SHOWN_TEXT = 40

_Document = Mapping[str, object]


#: Answers that are a list: the list's name, and what is shown of each of its rows.
_LISTS = {
    AdminAction.WHATIF: (
        "points",
        ("factor", "capacity_blocks", "hit_rate", "saved_s", "saved_share"),
    ),
    AdminAction.LOOKUP: ("prompts", ("prompt_tokens", "hit_tokens", "explanation")),
    AdminAction.WARM: ("prompts", ("prompt_tokens", "cached_tokens", "hit_tokens")),
    AdminAction.APPROVALS: ("approvals", _APPROVAL),
    AdminAction.RUNS: ("data", _RUN),
    AdminAction.ADAPTERS: ("adapters", _ADAPTER),
}
_MISS_COLUMNS = ("at", "request", "tenant", "prompt_tokens", "hit_tokens", "why")


def show(action: AdminAction, document: _Document) -> None:
    """Print what the admin plane answered."""
    if action is AdminAction.WORTH:
        _show_worth(document)
        return
    _print(_table(action, document))
    if action is AdminAction.STATS and (shares := _rows(document, "shares")):
        _print(_columns(shares, _SHARE))
    if action is AdminAction.WHATIF:
        _print(Text(_whatif_notes(document)))
    if action is AdminAction.RUNS and (cursor := document.get("next")) is not None:
        _print(Text(f"There are more; go on with --cursor {_cell(cursor)}."))
    if action is AdminAction.TREE and document.get("is_complete") is not True:
        _print(Text("There are more; raise --max-nodes or --depth."))


def _table(action: AdminAction, document: _Document) -> Table:
    if action in _LISTS:
        name, columns = _LISTS[action]
        return _columns(_rows(document, name), columns)
    match action:
        case AdminAction.STATS:
            table = _pairs(_flat(document))
        case AdminAction.TREE:
            table = _tree(_rows(document, "runs"))
        case AdminAction.APPROVE:
            table = _columns([document], _APPROVAL)
        case AdminAction.MISSES:
            table = _columns(miss_rows(document), _MISS_COLUMNS)
        case AdminAction.EXPLAIN:
            table = _lines(explanation_lines(document))
        case _:
            table = _pairs(document)
    return table


def _lines(lines: Iterable[str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(_cell(line))
    return table


def _whatif_notes(document: _Document) -> str:
    requests, sampled = document.get("requests"), document.get("sampled")
    said = f"Of {_cell(requests)} requests; {_cell(sampled)} blocks are followed."
    note = document.get("note")
    return f"{said}\nNote: {_cell(note)}." if isinstance(note, str) else said


def _show_worth(document: _Document) -> None:
    _print(_cell(document.get("verdict")))
    total = document.get("total")
    _print(_pairs(_flat(total) if isinstance(total, dict) else {}))
    if tenants := _rows(document, "tenants"):
        _print(_columns(tenants, _TENANT_WORTH))
    for name in ("best", "worst"):
        if prefixes := _rows(document, name):
            _print(Text(f"{name} prefixes"))
            _print(_columns(prefixes, _PREFIX_WORTH))


def _print(what: Table | Text) -> None:
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, highlight=False, markup=False, emoji=False).print(what)


def _rows(document: _Document, name: str) -> Sequence[_Document]:
    rows = document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _flat(document: _Document) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in document.items():
        if name == "shares":
            continue  # a table of their own
        if isinstance(value, dict):
            flat |= {f"{name} {inner}": it for inner, it in value.items()}
        else:
            flat[name] = value
    return flat


def _pairs(document: _Document) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in document.items():
        table.add_row(_words(name), _cell(value))
    return table


def _columns(rows: Iterable[_Document], names: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        is_number = name.endswith(
            ("tokens", "blocks", "hits", "leases", "rate", "share", "_s", "factor", "start")
        )
        table.add_column(
            _words(name), justify="right" if is_number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def _tree(rows: Sequence[_Document]) -> Table:
    names = ("start", "tokens", "blocks", "audience", "domain", "leases", "hits")
    table = _columns([], (*names, "approvals", "text"))
    for row in rows:
        cells = [_cell(row.get(name)) for name in names]
        # A run stands below the one that it continues.
        depth = row.get("depth")
        indent = "  " * (depth - 1) if isinstance(depth, int) else ""
        cells[0] = Text(indent) + cells[0]
        if row.get("is_salted") is True:
            cells[4] += Text(" (salted)")
        text = row.get("text")
        shown = text[:_SHOWN_TEXT] if isinstance(text, str) else ""
        table.add_row(*cells, _cell(row.get("approvals")), _cell(shown))
    return table


def _words(name: str) -> str:
    return name.removeprefix("num_").replace("_", " ")


def _cell(value: object) -> Text:
    match value:
        case None:
            shown = "-"
        case bool():
            shown = "yes" if value else "no"
        case float():
            # What a token takes is far below a second.
            shown = f"{value:.2g}" if 0 < value < 1 else f"{value:.1f}"
        case int():
            shown = f"{value:,}"
        case list():
            shown = ", ".join(map(str, value))
        case _:
            shown = str(value)
    return Text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", shown))
