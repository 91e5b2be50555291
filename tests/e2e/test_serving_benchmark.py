"""The serving benchmark runs on a tiny model, and prints every figure it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_models import make_llama, save_model

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"


def test_the_server_is_measured(tmp_path: Path) -> None:
    model = save_model(make_llama(), tmp_path / "llama")
    sizes = ["--rounds", "3", "--shared", "64", "--suffix", "8", "--requests", "4"]
    load = ["--shared-words", "20", "--clients", "1", "3", "--occupied", "25", "100"]
    small = ["--cache-blocks", "64", "--reply-tokens", "4", "--threads", "1"]
    done = subprocess.run(  # noqa: S603 -- the project's own script
        [
            sys.executable,
            str(SCRIPT),
            "--model",
            str(model),
            *sizes,
            *load,
            *small,
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "XDG_STATE_HOME": str(tmp_path / "state"),
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    assert report["model"] == model.name

    overhead = report["overhead"]
    assert (overhead["rounds"], overhead["shared_tokens"]) == (3, 64)
    assert overhead["client_ttft_s"]["p50"] > overhead["engine_ttft_s"]["p50"] > 0
    assert overhead["holds"] == (overhead["overhead_s"]["p50"] <= overhead["bound_s"])

    scenarios = {row["scenario"]: row for row in report["scenarios"]}
    assert set(scenarios) == {"shared-prefix", "multi-turn", "unique"}
    for row in scenarios.values():
        assert (row["num_requests"], row["num_failed"]) == (4, 0)
        assert row["requests_per_s"] > 0
    assert scenarios["unique"]["cached_share"] < scenarios["multi-turn"]["cached_share"]

    rows = [(row["wanted_percent"], row["cache"], row["clients"]) for row in report["tpot"]]
    assert rows == [
        (percent, cache, clients)
        for percent in (25, 100)
        for cache in ("off", "on")
        for clients in (1, 3)
    ]
    for row in report["tpot"]:
        assert row["occupied_share"] >= row["wanted_percent"] / 100 - 0.02
        assert row["tpot_s"]["p50"] > 0
    # A full pool makes room for every new prompt.
    assert report["tpot"][-1]["evicted_blocks"] > 0
    assert report["tpot"][0]["evicted_blocks"] == 0
