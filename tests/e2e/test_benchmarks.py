"""The benchmarks run on a tiny model, and print every figure they promise."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from prefold.cli.main import main
from support.kernels import needs_kernels
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_llama, make_tokenizer, save_model

pytestmark = pytest.mark.e2e

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = save_model(
        make_llama(max_position_embeddings=8192), tmp_path_factory.mktemp("llama")
    )
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


def _run(script: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a script here, where what it imports has been imported; return what it prints."""
    threads = torch.get_num_threads()
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.syspath_prepend(str(SCRIPTS))
        patch.setattr(sys, "argv", [script, *arguments])
        patch.setenv("HF_HUB_OFFLINE", "1")
        module = importlib.import_module(script.removesuffix(".py"))
        try:
            assert module.main() in codes
        finally:
            torch.set_num_threads(threads)
    return out.getvalue()


def test_the_first_token_is_timed_cold_and_after_a_hit(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sizes = ["--shared", "64", "--suffix", "8", "--rounds", "2"]
    out = _run("ttft.py", "--model", str(model), *sizes, "--json")
    report = json.loads(out)
    assert out.count("\n") == 1
    assert (report["shared_tokens"], report["rounds"]) == (64, 2)
    assert report["sdpa_s"] > 0
    is_within = (
        report["cold_ratio"] <= report["cold_bound"]
        and report["hit_ratio"] <= report["hit_bound"]
    )
    assert report["holds"] == is_within


def test_block_sizes_are_compared_on_the_prompts_of_the_tour(model: Path) -> None:
    sizes = ["--sizes", "8", "64", "--rounds", "1"]
    report = json.loads(_run("block_size.py", "--model", str(model), *sizes, "--json"))
    small, large = report["rows"]
    assert (small["block_size"], large["block_size"]) == (8, 64)
    assert small["metadata_bytes"] > 0
    assert large["metadata_bytes"] > 0
    assert 0 < small["lost_slot_share"] < large["lost_slot_share"] < 1
    # Tokens inside a block can be shared too, so hits hardly depend on its size.
    assert small["hit_share"] == pytest.approx(large["hit_share"], rel=0.05)
    assert small["hit_share"] > 0.5


def test_the_timing_attack_runs_and_few_trials_show_nothing() -> None:
    arguments = ["--tokens", "64", "--trials", "4", "--control-trials", "4"]
    # A quick server, since nothing is to be shown.
    out = _run("timing_attack.py", *arguments, "--block-ms", "0.1", "--json")
    [row] = json.loads(out)["timing_attack"]
    assert (row["num_tokens"], row["trials_per_arm"]) == (64, 4)
    assert row["resident"] == 1.0
    assert 0 <= row["auc"] <= 1
    assert row["asked_ms"] > 0
    assert row["verdict"] == "inconclusive"


def test_the_timing_attack_is_judged_by_how_well_it_tells_the_arms_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    attack = importlib.import_module("timing_attack")
    rng = random.Random(3)  # noqa: S311 -- times, not secrets

    def arms(count: int, gain: float, resident: float = 1.0) -> Any:
        asked = [round(rng.gauss(10 - gain, 1), 1) for _ in range(count)]
        other = [round(rng.gauss(10, 1), 1) for _ in range(count)]
        return attack.Arms(asked=asked, other=other, resident=resident)

    few = arms(50, 0.5)
    pairs = [(a, b) for a in few.asked for b in few.other]
    naive = sum((a < b) + (a == b) / 2 for a, b in pairs) / len(pairs)
    assert few.auc == pytest.approx(naive)
    clear, even = arms(2000, 3.0), arms(2000, 0.0)
    assert attack.judge(256, even, clear) == "holds"
    assert attack.judge(256, clear, clear) == "leaks"
    assert attack.judge(256, arms(2000, 0.3), clear) == "leaks"
    # The other way round it is a leak as well.
    assert attack.judge(256, arms(2000, -3.0), clear) == "leaks"
    assert attack.judge(256, even, arms(2000, 1.0)) == "inconclusive"
    assert attack.judge(64, even, arms(2000, 1.0)) == "holds"
    assert attack.judge(256, arms(2000, 0.0, 0.98), clear) == "inconclusive"
    assert attack.judge(256, arms(100, 0.0), clear) == "inconclusive"


def test_isolation_costs_hits_and_approving_gives_them_back(tmp_path: Path) -> None:
    made_up = ["--requests", "400", "--capacities", "100", "10", "--json"]
    rows = json.loads(_run("isolation_cost.py", *made_up))["isolation_cost"]
    assert [row["capacity"] for row in rows] == ["100 %", "10 %"]
    for row in rows:
        assert row["apart"] < row["approved"] <= 1
        assert row["apart"] < row["one_domain"] <= 1
        assert row["approved_prefixes"] > 0
    # Two sessions that begin alike, each of a tenant's own if there are many.
    lines = [
        {"r": [[0, 8], [100 * s + 10 * turn, 2]], "s": s} for s in (1, 2) for turn in (1, 2)
    ]
    with gzip.open(tmp_path / "small_trace.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--traces", str(tmp_path), "--tenants", "1000000", "--json"]
    [row, *_] = json.loads(_run("isolation_cost.py", *arguments))["isolation_cost"]
    assert (row["trace"], row["requests"]) == ("small_trace", 4)
    assert row["one_domain"] == pytest.approx(24 / 40)
    assert row["apart"] == pytest.approx(16 / 40)
    assert row["approved"] == pytest.approx(32 / 40)


def test_policies_are_measured_and_drawn_the_same_each_time(tmp_path: Path) -> None:
    small = ["--small", "--json", "--out"]
    report = json.loads(_run("eviction.py", *small, str(tmp_path / "one")))
    for row in report["hits"]:
        assert 0 <= row["hit_rates"]["lru"] <= row["bound_holding_prompts"] <= row["bound"]
    assert {row["cached_blocks"] for row in report["eviction_times"]} == {320, 640, 1_280}
    assert report["time_ratios"]["lru"] >= 1
    _run("eviction.py", *small, str(tmp_path / "two"), "--no-time")
    for name in ("eviction-hits.md", "eviction-hits.svg"):
        one, two = ((tmp_path / folder / name).read_text() for folder in ("one", "two"))
        assert one == two
        assert "chat" in one


def test_a_sample_is_held_against_replays(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sizes = ["--requests", "3", "--shared", "64", "--own", "8", "--reply", "4"]
    small = ["--cache-blocks", "64", "--lengths", "256", "--small", "--live", "lru"]
    command = ["whatif.py", "--model", str(model), *sizes, *small, "--json"]
    # Steps of so small a model may well be too short for the bound on the overhead.
    report = json.loads(_run(*command, codes=(0, 1)))
    assert len(report["curves"]) == len(report["live"]) == 3
    for row in report["curves"]:
        assert row["sampled"] <= 16_384
        # Prompts that exceed the smallest size are followed, though a cache refuses them.
        assert row["mean_error"] <= report["max_error"]
        assert row["mean_error"] <= row["max_error"] < 0.1
        assert 0 < row["exact"][-1] <= 1
    for row in report["live"]:
        assert row["mean_error"] < 0.1
        assert row["estimated"] == sorted(row["estimated"])
    overhead = report["overhead"]
    assert (overhead["requests"], overhead["prompt_tokens"]) == (3, 72)
    assert overhead["share"] == overhead["what_if_s"] / overhead["step_s"] > 0
    assert overhead["us_by_length"]["256"] > 0
    assert report["holds"] == (overhead["share"] <= report["max_overhead"])


@needs_kernels
def test_the_kernel_is_compared_with_the_machine() -> None:
    report = json.loads(_run("attention.py", "--shrink", "64", "--rounds", "1", "--json"))
    assert report["attention"].startswith("cpu-")
    for name in ("one_sequence", "sixteen_sequences", "prefill"):
        figures = report[name]
        assert figures["ratio"] > 0
        assert figures["holds"] == (figures["ratio"] >= figures["bound"])
    assert report["shared"]["gain"] > 0
    assert report["shared"]["multiple"] > 0


@needs_kernels
def test_a_forward_pass_is_compared_with_its_floors(model: Path) -> None:
    command = ("--model", str(model), "--rounds", "1", "--prompts", "1", "--json")
    report = json.loads(_run("linear.py", *command))
    assert report["linear"].startswith("cpu-")
    assert all(report[f"{rows}_rows"]["multiple"] > 0 for rows in (1, 16, 32))
    assert report["many_rows"]["ratio"] > 0
    assert report["error"]["multiple"] > 0
    assert report["narrow"]["tokens"] == 1024
    assert report["narrow"]["perplexity"] > 1


@needs_kernels
def test_the_engine_s_steps_are_compared_with_their_floors(model: Path) -> None:
    sizes = ("--shared", "64", "--reply", "3", "--requests", "4", "--blocks", "128")
    command = ("--model", str(model), *sizes, "--rounds", "1", "--crowds", "1", "--json")
    report = json.loads(_run("steps.py", *command))
    assert report["linear"].startswith("cpu-")
    assert report["padded_linear"].startswith("torch")
    figures = {"hit": "multiple", "cold": "ratio", "decode": "ratio", "crowd": "multiple"}
    for name, figure in figures.items():
        part = report[name]
        assert part[figure] > 0
        assert part["holds"] == (part[figure] <= part["bound"])
    assert report["crowd"]["steps"] >= 3
    assert report["hit"]["strict_multiple"] >= report["hit"]["multiple"] * (1 - 1e-9)


def test_throughput_is_compared_with_the_peers_on_the_same_tokens(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sizes = ["--shared", "64", "--own", "8", "--reply", "4", "--requests", "4"]
    peer = ["--in-flight", "2", "--pages", "16", "--batches", "256", "--rounds", "1"]
    out = _run("throughput.py", "--model", str(model), *sizes, *peer, "--json")
    report = json.loads(out)
    assert report["equal_replies"] == 1
    assert report["prefold_rps"] > 0
    assert report["peer_rps"] > 0
    assert report["floor_rps"] > 0
    assert report["holds"] == (report["ratio"] >= report["bound"])


@pytest.mark.parametrize("extra", [[], ["--profile"]])
def test_decode_steps_are_timed_and_taken_apart(
    model: Path,
    extra: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sizes = ["--sequences", "3", "--prompt-tokens", "20", "--steps", "2"]
    sizes += ["--cache-blocks", "64"]
    command = ["bench", "throughput", "--model", str(model), *sizes, *extra, "--json"]
    assert main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert [step["sequences"] for step in document["steps"]] == [1, 3]
    for step in document["steps"]:
        assert step["step_s"] > 0
        assert 0 < step["overhead_share"] < 1
        if extra:
            assert sum(step["shares"].values()) == pytest.approx(1, abs=0.2)


def test_advice_is_timed_on_made_up_traffic() -> None:
    report = json.loads(_run("advise.py", "--small", "--parts", "rows,chats", "--json"))
    rows, chats = report["speeds"]
    assert (rows["requests"], chats["requests"]) == (2000, 100)
    assert rows["seconds"] > 0
    assert rows["peak_bytes"] > 0
    assert rows["verdict"].startswith("It ")
    assert chats["breakers"] == ["the clock's seconds (99%)"]
    assert report["passed"]


@needs_kernels
@pytest.mark.slow
def test_precisions_are_compared_with_float32(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sizes = ["--windows", "1", "--window", "64", "--rounds", "1", "--shrink", "32"]
    out = _run("precision.py", "--model", str(model), *sizes, "--json")
    report = json.loads(out)
    assert out.count("\n") == 1
    rows = report["precisions"]
    assert len(rows) == 8
    for row in rows:
        assert row["identical"]
        assert row["tokens"] == 63
        assert row["perplexity"] > 1
    assert rows[0]["perplexity_change"] == 0
    # Heads of 12 numbers: 48 bytes, 24, or 12 and a scale.
    assert [round(row["tokens_ratio"], 2) for row in rows[:4]] == [1, 2, 2, 3]
    assert set(report["decode_share_of_float32"]) == {"bfloat16", "float16", "int8"}


def test_adapters_are_held_against_none(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    out = _run(
        "adapters.py", "--model", str(model), "--rounds", "1", "--prefix", "64", "--json"
    )
    report = json.loads(out)
    assert out.count("\n") == 1
    assert (report["adapters"], report["rows"], report["cached_tokens"]) == (8, 16, 64)
    for name in ("decode_step", "prefill", "warm_ttft"):
        assert min(report[name].values()) > 0


def test_the_page_is_timed_on_a_small_and_a_larger_tree() -> None:
    if shutil.which("chromium") is None and not os.environ.get("CI"):
        pytest.skip("there is no chromium; run: make system")
    out = _run("page.py", "--runs", "400", "--rounds", "1", "--json", codes=(0, 1))
    report = json.loads(out)
    assert out.count("\n") == 1
    times = {(row["name"], row["num_runs"]): row for row in report["figures"]}
    sizes = sorted({size for _, size in times})
    # A tree has at least as many runs as were asked for.
    assert sizes[0] < 400 <= sizes[-1]
    for name in ("first paint", "tree shown", "expand", "search"):
        for size in sizes:
            row = times[name, size]
            assert 0 < row["median_ms"] <= row["max_ms"]
            assert row["passed"] == (
                None if row["bound_ms"] is None else row["median_ms"] <= row["bound_ms"]
            )
    assert report["passed"] == all(row["passed"] is not False for row in report["figures"])
