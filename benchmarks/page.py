"""How soon the page shows, and a run of it opens, however large the tree is.

    python benchmarks/page.py            a table, with each bound and whether it holds
    python benchmarks/page.py --json     one JSON object on standard output

Two servers, one with few runs in its tree and one with many, are asked in turn by one
browser; ``tree_server.py`` says how they are shaped. Measured are

- *first paint*: from the navigation to the first contents on the screen, as the browser
  itself says;
- *tree shown*: from the token's last key to the first rows;
- *expand*: from the key that opens the run with most children to their rows;
- *search*: from the key that starts it to what was found;
- *step pause*: how long the engine's thread is kept from its steps by a page of 200 runs,
  or a search.

Exit code 1 if a bound is not met, 3 if the limit of time was reached before all was
measured. Needs Debian's chromium and the package playwright.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

#: What a headless one needs in a container, and what keeps it from asking the network.
_FLAGS = [
    *["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    *["--disable-component-update", "--disable-dev-shm-usage", "--no-first-run"],
]

#: In milliseconds.
_BOUNDS = {"first paint": 2_000.0, "expand": 300.0}

#: How long one thing in the browser, and the end of a server, may take, in seconds.
_PATIENCE_S = 30

_TOO_LATE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value in milliseconds; ``bound`` is the most it may be."""

    name: str
    num_runs: int
    median_ms: float
    max_ms: float
    bound_ms: float | None = None

    @property
    def passed(self) -> bool | None:
        return None if self.bound_ms is None else self.median_ms <= self.bound_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server with a tree.

    Attributes:
        pauses_ms: How long pages and searches keep the engine's thread.
    """

    num_runs: int
    url: str
    token: str = field(repr=False)
    pauses_ms: Mapping[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument("--runs", type=int, default=100_000, help="runs in the large tree")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    parser.add_argument("--limit-s", type=float, default=900, help="give up after so long")
    arguments = parser.parse_args()
    path = shutil.which("chromium")
    if path is None:
        print("there is no chromium; run: make system", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        _limit(arguments.limit_s),
        _serving(Path(directory), (200, arguments.runs)) as places,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        times: dict[tuple[str, int], list[float]] = {}
        for round_ in range(arguments.rounds + 1):
            for place in places:
                for name, seconds in _look(browser, place):
                    # The first round warms browser and server up.
                    if round_:
                        times.setdefault((name, place.num_runs), []).append(1e3 * seconds)
        browser.close()
        pauses = [(place.num_runs, place.pauses_ms) for place in places]
    for num_runs, its_pauses in pauses:
        for name, pause in its_pauses.items():
            times[f"step pause: {name}", num_runs] = [pause]
    for (name, num_runs), its in times.items():
        figures.append(
            Figure(
                name=name,
                num_runs=num_runs,
                median_ms=statistics.median(its),
                max_ms=max(its),
                bound_ms=_BOUNDS.get(name),
            )
        )
    passed = all(figure.passed is not False for figure in figures)
    if arguments.json:
        rows = [{**asdict(figure), "passed": figure.passed} for figure in figures]
        print(json.dumps({"runs": arguments.runs, "passed": passed, "figures": rows}))
    else:
        _print_table(figures)
    return 0 if passed else 1


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """End the process, with a sentence, if the body takes longer.

    The browser's driver waits without end where a page never answers, and ends by itself,
    as the servers do, when this process is gone.
    """

    def give_up() -> None:
        print(
            f"not all was measured in {seconds:g} s; give more with --limit-s, or take "
            "fewer --runs or --rounds",
            file=sys.stderr,
            flush=True,
        )
        os._exit(_TOO_LATE)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# -- the browser's side ----------------------------------------------------------------


def _look(browser: Browser, place: Place) -> Iterator[tuple[str, float]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{place.url}/ui")
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    yield "first paint", page.evaluate(_FIRST_PAINT) / 1e3
    page.get_by_label("Token", exact=True).fill(place.token)
    page.evaluate(_WATCH)
    yield "tree shown", _timed(page, "Enter", "#tree [role=treeitem]")
    widest = page.locator("#tree [role=treeitem][aria-expanded=false]").first
    widest.focus()
    yield "expand", _timed(page, "ArrowRight", "#tree [aria-level='2']")
    page.get_by_label("What to search for").fill("team-7")
    yield "search", _timed(page, "Enter", "#found:not(:empty)")
    context.close()
    if said:
        raise RuntimeError(f"the page complained: {said}")


_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"

#: Notes, in the page itself, when a key goes down, and when something first is there.
_WATCH = """
window.watching = {at: 0};
document.addEventListener(
  'keydown', () => { window.watching.at = performance.now(); }, true);
window.until = (selector) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error(`${selector} did not come`)), PATIENCE_MS);
  const look = () => {
    if (!document.querySelector(selector)) return false;
    requestAnimationFrame(() => requestAnimationFrame(
      () => resolve(performance.now() - window.watching.at)));
    return true;
  };
  if (look()) return;
  const observer = new MutationObserver(() => { if (look()) observer.disconnect(); });
  observer.observe(document.body, {childList: true, subtree: true, characterData: true});
});
// A function as the last value would be called by the driver, and waited for.
undefined
""".replace("PATIENCE_MS", str(1_000 * _PATIENCE_S))


def _timed(page: Page, key: str, selector: str) -> float:
    """Press a key; return the seconds to the second frame that has what was waited for."""
    if page.locator(selector).count():
        raise RuntimeError(f"{selector} is there already")
    page.evaluate(f"window.waited = window.until({json.dumps(selector)}); undefined")
    page.keyboard.press(key)
    return float(page.evaluate("window.waited")) / 1e3


# -- the servers' side -----------------------------------------------------------------


@contextmanager
def _serving(directory: Path, sizes: Sequence[int]) -> Iterator[list[Place]]:
    """Serve trees of some sizes from processes of their own, until the body ends."""
    with ExitStack() as processes:
        places = []
        for size in sizes:
            print(f"a tree of {size:,} runs ...", file=sys.stderr, flush=True)
            home = directory / str(size)
            home.mkdir()
            places.append(processes.enter_context(_server(home, size)))
        yield places


@contextmanager
def _server(home: Path, size: int) -> Iterator[Place]:
    script = Path(__file__).with_name("tree_server.py")
    process = subprocess.Popen(  # noqa: S603 -- our own script
        [sys.executable, str(script), str(home), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no standard output")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the server has not started")
        yield Place(**json.loads(line))
    finally:
        process.terminate()
        try:
            process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            print("a server had to be killed", file=sys.stderr)


# -- printing --------------------------------------------------------------------------


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description."""


def _print_table(figures: Sequence[Figure]) -> None:
    print(f"{'':34}{'runs':>9}{'median ms':>11}{'most ms':>10}{'bound':>8}")
    for figure in figures:
        bound = "" if figure.bound_ms is None else f"{figure.bound_ms:g}"
        verdict = {None: "", True: "met", False: "NOT MET"}[figure.passed]
        print(
            f"{figure.name:34}{figure.num_runs:9,}{figure.median_ms:11.2f}"
            f"{figure.max_ms:10.2f}{bound:>8} {verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
