"""Timing: works that take turns within one run, and a report of their figures."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

Work = Callable[[], object]


def time_in_turns(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Return each work's seconds in every round, after one round that does not count.

    As with ``timeit``, nobody's garbage is collected meanwhile.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    collects = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds + 1):
            for name, work in works.items():
                began_at = time.perf_counter()
                work()
                if number:
                    times[name].append(time.perf_counter() - began_at)
    finally:
        if collects:
            gc.enable()
    return times


def ratio_of(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the rounds' own ratios, which noise that lasts leaves alone."""
    return median(a / b for a, b in zip(above, below, strict=True))


def print_report(report: Mapping[str, object], *, as_json: bool) -> None:
    """Print one JSON object, or a line a figure."""
    if as_json:
        print(json.dumps(report))
        return
    for name, figures in report.items():
        print(f"{name}: {figures}")


@contextmanager
def linear_layers(kind: str) -> Iterator[None]:
    """Have models that are loaded meanwhile use linear layers of this kind."""
    before = os.environ.get("PREFOLD_LINEAR")
    os.environ["PREFOLD_LINEAR"] = kind
    try:
        yield
    finally:
        if before is None:
            del os.environ["PREFOLD_LINEAR"]
        else:
            os.environ["PREFOLD_LINEAR"] = before
