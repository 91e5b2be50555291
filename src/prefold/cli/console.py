"""Console: what is written where.

Results go to standard output, everything else to standard error: with ``--json`` the
former holds one object and nothing besides. On a terminal a long step shows a bar that
disappears when the step is done; elsewhere it is one line.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

#: What a reply must not do to a terminal: all control characters but tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    """Where a command writes. Leaving it takes a bar off the terminal again."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out = Console(highlight=False, markup=False, emoji=False)
        self._err = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    # -- results -------------------------------------------------------------------

    def say(self, text: str = "", *, indent: int = 0, style: str = "") -> None:
        """Write a sentence for people, wrapped between words."""
        width = max(self._people.width - indent, 20)
        for line in textwrap.wrap(text, width) or [""]:
            self.print_line(" " * indent + line, style=style)

    def print_line(self, line: str, *, style: str = "") -> None:
        """Write a line for people as it is."""
        self.end()
        self._people.print(Text(line, style=style), soft_wrap=True)
        self._people.file.flush()

    def warn(self, line: str) -> None:
        """Write what is not as it should be to standard error, as one line."""
        self.end()
        self._err.print(Text(line), soft_wrap=True)

    @property
    def _people(self) -> Console:
        return self._err if self.as_json else self._out

    def write(self, text: str) -> None:
        """Write a piece of a reply at once, as it is; nothing with ``--json``."""
        if self.as_json or not text:
            return
        self.end()
        # Past rich, which would wrap it and take a piece of it for markup.
        self._out.file.write(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))
        self._out.file.flush()

    def print_json(self, document: Mapping[str, object]) -> None:
        """Write the one object of ``--json``."""
        self.end()
        self._out.file.write(json.dumps(document, ensure_ascii=False) + "\n")
        self._out.file.flush()

    # -- steps -----------------------------------------------------------------------

    def begin(self, step: str, total_bytes: int | None = None) -> None:
        """Show that a long step begins, and its size if it has one."""
        size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
        self._begin(f"{step}{size} ...", step, total_bytes, DownloadColumn())

    def begin_runs(self, step: str, num_runs: int) -> None:
        """Show that a step begins which consists of so many runs."""
        self._begin(f"{step} ...", step, num_runs, MofNCompleteColumn())

    def _begin(self, line: str, step: str, total: int | None, done: ProgressColumn) -> None:
        self.end()
        if not self._err.is_terminal:
            self._err.print(line, soft_wrap=True)
            return
        sized = [] if total is None else [BarColumn(bar_width=16), done]
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            *sized,
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
        )
        self._bar.start()
        self._bar.add_task(step, total=total)

    def advance(self, done_bytes: int) -> None:
        """Show how far the step is; runs count as its size as well."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done_bytes)

    def end(self) -> None:
        """Take the step off the terminal."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show a step of unknown length while the body runs."""
        self.begin(what)
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def spinner(self, what: str) -> Iterator[None]:
        """Show on a terminal that the body takes a moment; nothing elsewhere."""
        if not self._err.is_terminal:
            yield
            return
        with self.step(what):
            yield


def format_bytes(num_bytes: int) -> str:
    """Return a size in the unit in which it has one to three digits before the point."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def format_seconds(seconds: float) -> str:
    """Return a duration with two or three digits that count."""
    if seconds < 0.0995:
        return (
            f"{seconds * 1000:.1f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
        )
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
