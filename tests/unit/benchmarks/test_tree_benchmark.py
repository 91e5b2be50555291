"""The tree benchmark runs, small, and what it prints is what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "tree.py"


def run(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 -- the project's own script
        [sys.executable, str(SCRIPT), "--small", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # 1 says that a bound was missed; bounds are for the full sizes.
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.slow
def test_json_is_one_object_with_every_figure_and_its_verdict() -> None:
    result = json.loads(run("--json"))
    figures = {figure["name"]: figure for figure in result["figures"]}
    assert figures["match a cached prompt"]["bound"] == 0.3
    assert figures["match / SHA-256"]["bound"] == pytest.approx(1 / 25)
    assert figures["publish in one call"]["bound"] == figures["evict all"]["bound"] == 1.0
    assert figures["metadata, a block"]["bound"] == 200
    for figure in figures.values():
        assert figure["value"] >= 0
        bound = figure["bound"]
        assert figure["passed"] == (None if bound is None else figure["value"] <= bound)
    # These two do not depend on the machine.
    assert figures["nodes more after that"]["passed"]
    assert figures["metadata, a block"]["passed"]


@pytest.mark.slow
def test_the_table_names_every_bound() -> None:
    table = run()
    assert "match a cached prompt" in table
    assert "met" in table
