"""What eviction policies hit on traces, beside the best any could, and what evicting costs.

    python benchmarks/eviction.py --traces DIR --out docs
    python benchmarks/eviction.py --json              made-up traces, one JSON object

Two parts:

- *hits*: every registered policy, and the clairvoyant bound, at 1, 3 and 10 % of each
  trace's distinct blocks. Without ``--traces``, on made-up traces of similar shapes.
- *time*: microseconds an evicted block takes among 1e3, 1e5 and 1e6 cached blocks. The
  slowest may take three times what the fastest does.

``--out DIR`` writes the hits there as ``eviction-hits.md`` and ``eviction-hits.svg``.
``--halves`` takes the halves A and B of two traces instead: constants were chosen on A.
Exit code 1 if the bound on the time is not met.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from eviction_report import Hits, draw_hits, markdown_table
from prefold.advisor import (
    CLAIRVOYANT,
    Trace,
    agent_trace,
    chat_trace,
    few_shot_trace,
    grow_block_tree,
    merge_blocks,
    read_trace,
    replay,
    replay_clairvoyant,
)
from prefold.cache import PrefixCache
from prefold.errors import InvalidInputError
from prefold.eviction.cost import PRIOR
from prefold.eviction.registry import POLICIES, check_policy
from prefold.identity.domain import Domain
from stand_in import stand_in_fingerprint
from trace_halves import cut_in_halves

#: Traces with block ids, and how many of their blocks make one of about 512 tokens where
#: there are enough of them.
TRACES = {
    "mooncake_conversation": 1,
    "mooncake_synthetic": 1,
    "coding_agent_merged": 8,
    "tau_airline_trace": 1,
    "bbh_fewshot_trace": 1,
}
PERCENTS = (1, 3, 10)

#: Traces on whose first halves the constants of ``value`` were chosen.
HALVED = ("mooncake_conversation", "coding_agent_merged")

BLOCK = 16
RUN = 32
FINGERPRINT = stand_in_fingerprint(BLOCK)
DOMAIN = Domain("bench")

#: The slowest may take so many times what the fastest does.
MAX_RATIO = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything."""

    requests: int
    cached: tuple[int, ...]
    repeats: int


FULL = Sizes(requests=5_000, cached=(1_000, 100_000, 1_000_000), repeats=400)
SMALL = Sizes(requests=300, cached=(320, 640, 1_280), repeats=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionTime:
    """Microseconds per evicted block: the median call's, and the fastest one's."""

    policy: str
    cached_blocks: int
    us_per_block: float
    best_us_per_block: float


def main() -> int:
    arguments = _parse()
    sizes = SMALL if arguments.small else FULL
    try:
        policies = _policies(arguments.policies)
        traces = _traces(arguments.traces, sizes.requests)
        if arguments.halves:
            traces = [
                half
                for trace in traces
                if trace.name in HALVED or arguments.traces is None
                for half in cut_in_halves(trace)
            ]
    except InvalidInputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    hits = [row for trace in traces for row in measure_hits(trace, policies)]
    times = [] if arguments.no_time else measure_times(policies, sizes)
    ratios = slowest_to_fastest(times)
    passed = all(ratio <= MAX_RATIO for ratio in ratios.values())
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        table = markdown_table(hits, policies)
        (arguments.out / "eviction-hits.md").write_text(table, encoding="utf-8")
        draw_hits(hits, policies, arguments.out / "eviction-hits.svg")
    if arguments.json:
        document = {
            "passed": passed,
            "hits": [asdict(row) for row in hits],
            "eviction_times": [asdict(row) for row in times],
            "time_ratios": ratios,
            "max_time_ratio": MAX_RATIO,
        }
        print(json.dumps(document))
    else:
        print(markdown_table(hits, policies))
        _print_times(times, ratios)
    return 0 if passed else 1


# -- hits ------------------------------------------------------------------------------


def measure_hits(trace: Trace, policies: Sequence[str]) -> list[Hits]:
    """Replay one trace at every capacity."""
    tree = grow_block_tree(request.block_ids() for request in trace.requests)
    rows = []
    for percent in PERCENTS:
        num_blocks = max(tree.num_blocks * percent // 100, 1)
        rates: dict[str, float] = {}
        for policy in policies:
            _say(f"{trace.name} at {percent} %: {policy} ...")
            rates[policy] = replay(trace, policy, num_blocks, PRIOR).hit_rate
            _say(f"  {rates[policy]:.4f}")
        bound = replay_clairvoyant(trace, num_blocks, PRIOR, tree=tree)
        held = replay_clairvoyant(trace, num_blocks, PRIOR, tree=tree, holds_prompts=True)
        rows.append(
            Hits(
                trace=trace.name,
                requests=len(trace.requests),
                block_size=trace.block_size,
                percent=percent,
                blocks=num_blocks,
                hit_rates=rates,
                bound=bound.hit_rate,
                bound_holding_prompts=held.hit_rate,
            )
        )
    return rows


def _traces(directory: Path | None, num_requests: int) -> list[Trace]:
    if directory is None:
        return [
            make(seed=1, num_requests=num_requests)
            for make in (chat_trace, agent_trace, few_shot_trace)
        ]
    traces = []
    for name, num_merged in TRACES.items():
        _say(f"reading {name} ...")
        reading = read_trace(directory / f"{name}.jsonl.gz")
        traces.append(merge_blocks(reading.trace, num_merged))
    return traces


def _policies(text: str | None) -> list[str]:
    names = list(POLICIES) if text is None else text.split(",")
    if CLAIRVOYANT in names:
        raise InvalidInputError("the bound is always there and is no policy")
    for name in names:
        check_policy(name)
    return names


# -- time ------------------------------------------------------------------------------


def measure_times(policies: Sequence[str], sizes: Sizes) -> list[EvictionTime]:
    """Time evictions in caches of every size in turn, so that noise meets all alike."""
    rows = []
    for policy in policies:
        _say(f"filling caches under {policy} ...")
        fillings = [_Filling(policy, num_blocks) for num_blocks in sizes.cached]
        seconds: list[list[float]] = [[] for _ in fillings]
        for _ in range(sizes.repeats):
            for filling, its in zip(fillings, seconds, strict=True):
                its.append(filling.evict_a_run())
        for num_blocks, its in zip(sizes.cached, seconds, strict=True):
            rows.append(
                EvictionTime(
                    policy=policy,
                    cached_blocks=num_blocks,
                    us_per_block=1e6 * statistics.median(its) / RUN,
                    best_us_per_block=1e6 * min(its) / RUN,
                )
            )
    return rows


def slowest_to_fastest(times: Sequence[EvictionTime]) -> dict[str, float]:
    """Return for each policy what the slowest size takes over what the fastest does."""
    by_policy: dict[str, list[float]] = {}
    for row in times:
        by_policy.setdefault(row.policy, []).append(row.us_per_block)
    return {policy: max(its) / min(its) for policy, its in by_policy.items()}


class _Filling:
    """A full cache of runs, some of them used more often than others."""

    def __init__(self, policy: str, num_blocks: int) -> None:
        self._now = 0.0
        self._rng = np.random.default_rng(7)
        self._num_served = 0
        self._cache = PrefixCache(
            num_blocks=num_blocks, block_size=BLOCK, policy=policy, clock=lambda: self._now
        )
        for _ in range(num_blocks // RUN + 1):
            self._serve(self._num_served)
            # A third of the time an earlier prompt comes back, if it is still there.
            if self._rng.random() < 1 / 3:
                self._serve(int(self._rng.integers(self._num_served)))

    def evict_a_run(self) -> float:
        """Serve a new prompt; return the seconds it took to make room for it."""
        return self._serve(self._num_served)

    def _serve(self, number: int) -> float:
        self._now += 1.0
        self._num_served = max(self._num_served, number + 1)
        tokens = np.random.default_rng(number).integers(
            0, 50_000, RUN * BLOCK, dtype=np.int64
        )
        lease = self._cache.acquire(FINGERPRINT, DOMAIN, tokens)
        if lease.pending_copy is not None:
            self._cache.copied(lease)
        taken = _seconds(partial(self._cache.reserve, lease, len(tokens)))
        self._cache.release(lease, tokens, len(tokens))
        return taken


def _seconds(action: partial[None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


# -- printing --------------------------------------------------------------------------


def _print_times(times: Sequence[EvictionTime], ratios: dict[str, float]) -> None:
    for row in times:
        print(
            f"{row.policy:10}{row.cached_blocks:>12,} cached blocks"
            f"{row.us_per_block:10.3f} us per evicted block, "
            f"{row.best_us_per_block:.3f} at best"
        )
    for policy, ratio in ratios.items():
        verdict = "met" if ratio <= MAX_RATIO else "NOT MET"
        print(f"{policy:10}slowest / fastest {ratio:.2f}, bound {MAX_RATIO:g}: {verdict}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it out")
    parser.add_argument("--traces", type=Path, help="where the recorded traces are")
    parser.add_argument("--halves", action="store_true", help="halves of two traces")
    parser.add_argument("--policies", help="names with commas between; all by default")
    parser.add_argument("--out", type=Path, help="where the table and the plot go")
    parser.add_argument("--no-time", action="store_true", help="leave the second part out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
