"""How well a small sample tells what other cache sizes would hit, and what it costs.

    python benchmarks/whatif.py --traces DIR --json
    python benchmarks/whatif.py --small            made-up traces, and a model of your own

Three parts:

- *curve*: token hit rates of LRU at 1, 3, 10, 30 and 60 % of each trace's distinct blocks,
  by one pass of ``MissCurve`` with its budget of 16,384 blocks, against a replay through
  the real ``PrefixCache`` for each size; the coding agents also with every hundredth block
  from the start. The mean absolute error may be 0.02.
- *live*, with ``--live POLICY``: what the meter says at half, twice and four times 3 %,
  given what that policy hits at 3 %, against replays of that policy at those sizes.
- *overhead*: what following the requests takes of the steps' own time, on a model. It may
  be 1 %. And microseconds a prompt, by its length, with a full sample.

Exit code 1 if a bound is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from prefold.advisor import (
    MissCurve,
    Trace,
    WhatIfMeter,
    agent_trace,
    chat_trace,
    few_shot_trace,
    grow_block_tree,
    merge_blocks,
    path_marks,
    read_trace,
    replay,
)
from prefold.advisor.what_if import FACTORS
from prefold.blocks.table import TOKEN_DTYPE
from prefold.cache import READ_WRITE, PrefixCache
from prefold.engine.assembly import Silence, assemble
from prefold.engine.config import RequestOptions
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.engine.observer import UsedPath
from prefold.engine.request import RequestOutput, SamplingParams
from prefold.errors import InvalidInputError
from prefold.eviction.cost import PRIOR
from prefold.identity.domain import Domain
from prefold.server.what_if import LiveWhatIf
from stand_in import stand_in_fingerprint

TRACES = (
    "bbh_fewshot_trace",
    "tau_airline_trace",
    "mooncake_synthetic",
    "mooncake_conversation",
    "coding_agent_merged",
)
PERCENTS = (1, 3, 10, 30, 60)
LIVE_PERCENT = 3

#: This trace is also followed at this rate from the start.
FORCED = ("coding_agent_merged", 0.01)

#: Blocks of the coding agents that make one for ``--live``, whose replays are many.
NUM_MERGED = 8

MAX_ERROR = 0.02
MAX_OVERHEAD = 0.01

SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """One pass over one trace, against a replay for each size."""

    trace: str
    requests: int
    block_size: int
    begin_rate: float
    end_rate: float
    sampled: int
    us_per_request: float
    capacities: list[int]
    exact: list[float]
    estimated: list[float]
    mean_error: float
    max_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """What the meter says around one size, against replays of the same policy."""

    trace: str
    policy: str
    capacities: list[int]
    exact: list[float]
    estimated: list[float]
    mean_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What following the requests of one engine took."""

    requests: int
    prompt_tokens: int
    step_s: float
    what_if_s: float
    share: float
    us_per_request: float
    us_by_length: dict[int, float]


def main() -> int:
    args = _parse()
    # What the demo model needs is here already, or is asked for in its own way.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        traces = list(_traces(args))
    except InvalidInputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    curves = [row for trace in traces for row in measure_curve(trace)]
    live = [measure_live(trace, args.live) for trace in traces] if args.live else []
    overhead = None if args.no_overhead else measure_overhead(args)
    report = {
        "curves": [asdict(row) for row in curves],
        "live": [asdict(row) for row in live],
        "overhead": None if overhead is None else asdict(overhead),
        "max_error": MAX_ERROR,
        "max_overhead": MAX_OVERHEAD,
        "holds": all(row.mean_error <= MAX_ERROR for row in curves)
        and (overhead is None or overhead.share <= MAX_OVERHEAD),
    }
    if args.json:
        print(json.dumps(report))
    else:
        _show(curves, live, overhead)
    return 0 if report["holds"] else 1


# -- the curve -------------------------------------------------------------------------


def measure_curve(trace: Trace) -> Iterator[CurveRow]:
    """Replay a trace at every size; then follow it once for each rate."""
    capacities = _capacities(trace, PERCENTS)
    exact = []
    for num_blocks in capacities:
        exact.append(replay(trace, "lru", num_blocks, PRIOR).hit_rate)
        _say(f"{trace.name}: {num_blocks} blocks hit {exact[-1]:.4f}")
    rates = [1.0, FORCED[1]] if trace.name == FORCED[0] else [1.0]
    for rate in rates:
        row = follow(trace, capacities, exact, rate)
        _say(f"  from rate {rate:g}: mean error {row.mean_error:.4f}")
        yield row


def follow(
    trace: Trace, capacities: Sequence[int], exact: Sequence[float], rate: float
) -> CurveRow:
    """Follow a trace once, and compare."""
    curve = MissCurve(capacities, rate=rate)
    seconds = 0.0
    for request in trace.requests:
        ids = request.block_ids()
        began_at = time.perf_counter()
        curve.note(path_marks(ids, SEED), num_asked=len(ids), num_kept=len(ids))
        seconds += time.perf_counter() - began_at
    tokens = trace.num_prompt_tokens
    found = [point.hit_blocks * trace.block_size / tokens for point in curve.points()]
    errors = [abs(ours - real) for ours, real in zip(found, exact, strict=True)]
    return CurveRow(
        trace=trace.name,
        requests=len(trace.requests),
        block_size=trace.block_size,
        begin_rate=rate,
        end_rate=curve.rate,
        sampled=curve.num_sampled,
        us_per_request=1e6 * seconds / len(trace.requests),
        capacities=list(capacities),
        exact=list(exact),
        estimated=found,
        mean_error=sum(errors) / len(errors),
        max_error=max(errors),
    )


# -- live ------------------------------------------------------------------------------


def measure_live(trace: Trace, policy: str) -> LiveRow:
    """Replay a policy at each factor, and ask the meter that knows only its own size."""
    if trace.name == FORCED[0]:
        trace = merge_blocks(trace, NUM_MERGED)
    [own] = _capacities(trace, [LIVE_PERCENT])
    capacities = [max(int(own * factor), 1) for factor in FACTORS]
    results = [replay(trace, policy, num_blocks, PRIOR) for num_blocks in capacities]
    hits = results[FACTORS.index(1.0)].hit_tokens.tolist()
    meter = WhatIfMeter(num_blocks=own, block_size=trace.block_size)
    for request, num_hits in zip(trace.requests, hits, strict=True):
        ids = request.block_ids()
        meter.note_query(
            path_marks(ids, SEED),
            num_kept=len(ids),
            # A replay lets all blocks of a prompt hit, an engine all but the last token.
            num_prompt_tokens=request.num_prompt_tokens + 1,
            num_hit_tokens=num_hits,
        )
    exact = [result.hit_rate for result in results]
    found = [point.hit_rate for point in meter.read(PRIOR).points]
    errors = [abs(ours - real) for ours, real in zip(found, exact, strict=True)]
    _say(f"{trace.name}, {policy}: {exact} and estimated {found}")
    return LiveRow(
        trace=trace.name,
        policy=policy,
        capacities=capacities,
        exact=exact,
        estimated=found,
        # At its own size the meter was told.
        mean_error=sum(errors) / (len(errors) - 1),
    )


# -- overhead --------------------------------------------------------------------------


class Timed:
    """An observer that follows the requests, and measures how long that takes."""

    def __init__(self, live: LiveWhatIf) -> None:
        self._live = live
        self.step_s = 0.0
        self.what_if_s = 0.0
        self.num_told = 0

    def on_step(self, seconds: float, num_computed_tokens: int) -> None:
        del num_computed_tokens
        self.step_s += seconds

    def on_finished(self, output: RequestOutput, options: RequestOptions) -> None:
        del output, options

    def on_used(self, path: UsedPath) -> None:
        began_at = time.perf_counter()
        self._live.on_used(path)
        self.what_if_s += time.perf_counter() - began_at
        self.num_told += 1


def measure_overhead(args: argparse.Namespace) -> Overhead:
    """Serve prompts with a shared beginning on a model, following them."""
    source = args.model or str(ensure_demo_model(Silence()))
    assembly = assemble(source, ModelSettings(cache_blocks=args.cache_blocks))
    timed = Timed(LiveWhatIf(assembly.parts.cache))
    engine = Engine(assembly.parts, assembly.config, timed)
    generator = np.random.default_rng(SEED)
    vocab = assembly.loaded.vocab_size
    shared = generator.integers(0, vocab, args.shared)
    prompts = [
        np.concatenate([shared, generator.integers(0, vocab, args.own)])
        for _ in range(args.requests)
    ]
    engine.generate(prompts, SamplingParams(max_tokens=args.reply, ignore_eos=True))
    engine.close()
    return Overhead(
        requests=timed.num_told,
        prompt_tokens=args.shared + args.own,
        step_s=timed.step_s,
        what_if_s=timed.what_if_s,
        share=timed.what_if_s / timed.step_s,
        us_per_request=1e6 * timed.what_if_s / timed.num_told,
        us_by_length={length: _us_of(length) for length in args.lengths},
    )


def _us_of(num_tokens: int) -> float:
    """Return the median microseconds that a prompt takes, half of it known, when full."""
    block_size = 16
    num_blocks = 32_768
    live = LiveWhatIf(
        PrefixCache(num_blocks=num_blocks, block_size=block_size, clock=lambda: 0.0)
    )
    generator = np.random.default_rng(SEED)
    shared = generator.integers(0, 50_000, num_tokens // 2, dtype=TOKEN_DTYPE)
    seconds = []
    num_prompts = max(3 * num_blocks * block_size // num_tokens, 40)
    for _ in range(num_prompts):
        own = generator.integers(0, 50_000, num_tokens - len(shared), dtype=TOKEN_DTYPE)
        path = UsedPath(
            tokens=np.concatenate([shared, own]),
            num_prompt_tokens=num_tokens,
            num_cached_tokens=0,
            num_computed_tokens=num_tokens,
            domain=Domain("bench"),
            access=READ_WRITE,
            fingerprint=stand_in_fingerprint(block_size),
        )
        began_at = time.perf_counter()
        live.on_used(path)
        seconds.append(time.perf_counter() - began_at)
    return 1e6 * float(np.median(seconds[num_prompts // 2 :]))


# -- traces and printing ---------------------------------------------------------------


def _traces(args: argparse.Namespace) -> Iterator[Trace]:
    if args.traces is None:
        num_requests = 300 if args.small else 5_000
        for make in (chat_trace, agent_trace, few_shot_trace):
            yield make(seed=1, num_requests=num_requests)
        return
    for name in args.only.split(",") if args.only else TRACES:
        _say(f"reading {name} ...")
        yield read_trace(args.traces / f"{name}.jsonl.gz").trace


def _capacities(trace: Trace, percents: Sequence[int]) -> list[int]:
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    return [max(tree.num_blocks * percent // 100, 1) for percent in percents]


def _show(
    curves: Sequence[CurveRow], live: Sequence[LiveRow], overhead: Overhead | None
) -> None:
    print("| trace | rate at the end | " + " | ".join(f"{p} %" for p in PERCENTS), end="")
    print(" | mean error |\n| --- | --: |" + " --: |" * (len(PERCENTS) + 1))
    for row in curves:
        cells = [
            f"{real:.3f} ({ours - real:+.3f})"
            for real, ours in zip(row.exact, row.estimated, strict=True)
        ]
        shown = " | ".join([f"{row.end_rate:.4f}", *cells, f"{row.mean_error:.4f}"])
        print(f"| {row.trace} | {shown} |")
    for each in live:
        pairs = zip(FACTORS, each.exact, each.estimated, strict=True)
        cells = [
            f"{factor:g}: {real:.3f} ({ours - real:+.3f})" for factor, real, ours in pairs
        ]
        print(f"{each.trace}, {each.policy}: {', '.join(cells)}")
    if overhead is not None:
        print(
            f"{1e6 * overhead.what_if_s:.0f} us of {overhead.step_s:.2f} s of steps: "
            f"{100 * overhead.share:.3f} %; {overhead.us_per_request:.0f} us a request"
        )
        for length, us in overhead.us_by_length.items():
            print(f"a prompt of {length:,} tokens: {us:.0f} us")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it out")
    parser.add_argument("--traces", type=Path, help="where the recorded traces are")
    parser.add_argument("--only", help="names of traces with commas between")
    parser.add_argument("--live", help="a policy to ask the meter about")
    parser.add_argument("--no-overhead", action="store_true", help="leave that part out")
    parser.add_argument("--model", help="directory or hub id; the demo model by default")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--shared", type=int, default=512, help="tokens all begin with")
    parser.add_argument("--own", type=int, default=128, help="further tokens of a prompt")
    parser.add_argument("--reply", type=int, default=16, help="tokens of a reply")
    parser.add_argument("--cache-blocks", type=int, default=4096)
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[1_024, 8_192, 65_536], help="of prompts"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
