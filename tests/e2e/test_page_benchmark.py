"""The page's benchmark measures what it says, on a small tree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page.py"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="run: make system")
def test_the_page_is_timed_on_a_small_and_a_larger_tree() -> None:
    done = subprocess.run(  # noqa: S603 -- the project's own script
        [sys.executable, str(SCRIPT), "--runs", "1500", "--rounds", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    report = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    found = {(each["name"], each["num_runs"]): each for each in report["figures"]}
    sizes = sorted({num_runs for _, num_runs in found})
    assert sizes[0] == pytest.approx(200, abs=60)
    assert sizes[1] == pytest.approx(1500, abs=60)
    for num_runs in sizes:
        for name in ("first paint", "tree shown", "expand", "search"):
            assert found[name, num_runs]["median_ms"] > 0
        assert found["step pause: children of the widest", num_runs]["median_ms"] > 0
    judged = [each for each in report["figures"] if each["bound_ms"] is not None]
    assert {each["name"] for each in judged} == {"first paint", "expand"}
    for each in judged:
        assert each["passed"] == (each["median_ms"] <= each["bound_ms"])
    assert report["passed"] == all(each["passed"] for each in judged)
    assert done.returncode == (not report["passed"])
