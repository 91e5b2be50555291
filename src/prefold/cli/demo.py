"""Demo: the tour, its table row by row, and what the figures mean."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prefold.cli.busy import busy_note
from prefold.cli.console import Screen
from prefold.cli.demo_row import Row, add_exactness
from prefold.cli.demo_scenarios import Tour
from prefold.cli.demo_table import (
    HEADER,
    compared_line,
    exactness_line,
    figures_line,
    row_to_json,
)
from prefold.cli.opening import Facts, Session, open_session
from prefold.cli.options import DemoOptions

EXIT_NOT_AS_EXPECTED = 1

_NOTE_INDENT = 4

_EXPLANATION = """\
What a hit saves: the prefill of the tokens it hits, and so time to first token (TTFT).
What it does not: the prefill of what follows them, and the arithmetic of every token \
of the reply.
What may move indirectly: time per output token (TPOT), through how many sequences share \
a step, their scheduling, and shared loads. Here one request runs at a time.
Cold is with the cache off or empty. In the rows (e) warm is after a prompt that differs \
in its first line only.
"""


def run_demo(options: DemoOptions) -> int:
    """Run the tour; return 1 if a figure is not what it should be."""
    with (
        Screen(as_json=options.as_json) as screen,
        open_session(options.model, screen) as session,
    ):
        return _tour(session, screen)


def _tour(session: Session, screen: Screen) -> int:
    for line in session.facts.lines():
        screen.say(line)
    screen.say(
        f"Loaded in {session.load_s:.1f} s. The tour takes two or three minutes on two "
        "free cores."
    )
    note = busy_note()
    if note is not None:
        screen.say(note)
    started_at = time.monotonic()
    with screen.step("Fitting texts to token counts"):
        tour = Tour(session, on_run=screen.advance)
    screen.say()
    for line in HEADER:
        screen.print_line(line, style="bold")
    rows: list[Row] = []
    for step in tour.steps():
        screen.begin_runs(step.title, step.num_runs)
        rows.append(step.take())
        _show(rows[-1], screen)
    seconds = time.monotonic() - started_at
    _conclude(rows, session.facts, seconds, screen)
    return EXIT_NOT_AS_EXPECTED if any(row.faults for row in rows) else 0


def _show(row: Row, screen: Screen) -> None:
    screen.say(row.title, style="bold cyan")
    screen.print_line(figures_line(row))
    for note in (*row.notes, compared_line(row.exactness)):
        screen.say(note, indent=_NOTE_INDENT)
    for fault in row.faults:
        screen.say(f"NOT AS EXPECTED: {fault}.", indent=_NOTE_INDENT, style="bold red")


def _conclude(rows: Sequence[Row], facts: Facts, seconds: float, screen: Screen) -> None:
    exactness = add_exactness(row.exactness for row in rows)
    screen.say()
    for paragraph in _EXPLANATION.splitlines():
        screen.say(paragraph)
    screen.say(f"The tour took {seconds:.0f} s.")
    screen.say()
    screen.say(
        exactness_line(exactness), style="bold" if exactness.is_exact else "bold red"
    )
    if screen.as_json:
        screen.print_json(
            {
                "loaded": facts.to_json(),
                "rows": [row_to_json(row) for row in rows],
                "exactness": {
                    "identical": exactness.is_exact,
                    "prompts": exactness.num_prompts,
                    "same_tokens": exactness.num_same_tokens,
                    "same_bits": exactness.num_same_bits,
                    "max_difference": exactness.max_difference,
                },
                "as_expected": not any(row.faults for row in rows),
                "seconds": round(seconds, 3),
            }
        )
