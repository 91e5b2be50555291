"""The work of ``prefold replay``: policies on a trace, beside what the best could do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from prefold.advisor.block_tree import BlockTree, grow_block_tree
from prefold.advisor.clairvoyant import replay_clairvoyant
from prefold.advisor.replay import replay
from prefold.advisor.replay_result import ReplayResult
from prefold.advisor.trace import Trace
from prefold.advisor.trace_formats import TraceFormat
from prefold.advisor.trace_reader import TraceOptions, TraceReading, read_trace
from prefold.cli.console import Screen
from prefold.cli.replay_capacity import Capacity, parse_capacities
from prefold.cli.replay_options import ReplayOptions
from prefold.errors import InvalidInputError
from prefold.eviction.cost import CostFit
from prefold.eviction.registry import POLICIES, check_policy

#: What the others are measured from.
_BASELINE = "lru"
_MAX_SHOWN_PROBLEMS = 5

_HEADER = (
    "capacity",
    "blocks",
    "policy",
    "hit rate",
    "bound",
    "of gap",
    "saved",
    "evicted",
)
_WIDTHS = (10, 12, 10, 10, 8, 8, 12, 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """All results at one capacity."""

    capacity: Capacity
    baseline: ReplayResult
    bound: ReplayResult
    results: Sequence[ReplayResult]

    def gap_closed(self, result: ReplayResult) -> float | None:
        """Return how far it comes from LRU to the bound; None if nothing lies between."""
        gap = self.bound.hit_rate - self.baseline.hit_rate
        return None if gap <= 0 else (result.hit_rate - self.baseline.hit_rate) / gap


@dataclass(frozen=True, slots=True)
class _Costs:
    """What prefill takes, and whether policies rank by it."""

    fit: CostFit
    rank: bool


def run_replay(options: ReplayOptions) -> int:
    """Replay a trace under every policy at every capacity, and show what was hit."""
    policies = _policies(options.policies)
    capacities = parse_capacities(options.capacities)
    trace_options = TraceOptions(
        trace_format=trace_format_of(options.trace_format),
        block_size=options.block_size,
        num_merged=options.merge,
        is_strict=options.is_strict,
    )
    costs = _Costs(fit=_cost(options), rank=options.ranks_by_cost)
    with Screen(as_json=options.as_json) as screen:
        with screen.spinner(f"Reading {options.trace.name}"):
            reading = read_trace(options.trace, trace_options)
            trace = reading.trace
            tree = grow_block_tree(request.block_ids() for request in trace.requests)
        sizes = [(each, each.resolve(_num_distinct(trace, tree))) for each in capacities]
        rows = [
            _replay_all(trace, tree, capacity, size, policies, costs, screen)
            for capacity, size in sizes
        ]
        _report_problems(reading, screen)
        if options.as_json:
            screen.print_json(_document(reading, tree, rows))
        else:
            _show(trace, tree, rows, screen)
    return 0


def _cost(options: ReplayOptions) -> CostFit:
    for value in (options.ms_per_token, options.ms_per_1k_depth):
        # That it is not below 0 was seen to when it was read.
        if not math.isfinite(value):
            raise InvalidInputError(f"a prefill cost must be a number, got {value}")
    return CostFit(
        per_step=0.0,
        per_token=options.ms_per_token / 1e3,
        per_pair=options.ms_per_1k_depth / 1e6,
    )


def _policies(text: str | None) -> list[str]:
    typed = POLICIES if text is None else map(str.strip, text.split(","))
    names = list(dict.fromkeys(typed))
    for name in names:
        check_policy(name)  # refuses what there is not, and names the nearest
    return names


def trace_format_of(name: str | None) -> TraceFormat | None:
    """Return the format with this name; None for None.

    Raises:
        InvalidInputError: There is none; names the nearest.
    """
    if name is None:
        return None
    known = [each.value for each in TraceFormat]
    if name in known:
        return TraceFormat(name)
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    raise InvalidInputError(f"there is no trace format {name!r}; {hint}")


def _num_distinct(trace: Trace, tree: BlockTree) -> int:
    if tree.num_blocks == 0:
        raise InvalidInputError(
            f"{trace.name} has no prompt that fills a block of {trace.block_size} tokens, "
            "so there is nothing to replay"
        )
    return tree.num_blocks


def _replay_all(  # noqa: PLR0913, PLR0917 -- what a replay needs
    trace: Trace,
    tree: BlockTree,
    capacity: Capacity,
    num_blocks: int,
    policies: Sequence[str],
    costs: _Costs,
    screen: Screen,
) -> _Rows:
    by_policy = {}
    for policy in dict.fromkeys([*policies, _BASELINE]):
        screen.begin_runs(f"Replaying {policy} at {capacity.text}", len(trace.requests))
        by_policy[policy] = replay(
            trace,
            policy,
            num_blocks,
            costs.fit,
            ranks_by_cost=costs.rank,
            on_progress=screen.advance,
        )
    with screen.spinner(f"Finding the bound at {capacity.text}"):
        bound = replay_clairvoyant(trace, num_blocks, costs.fit, tree=tree)
    return _Rows(
        capacity=capacity,
        baseline=by_policy[_BASELINE],
        bound=bound,
        results=[by_policy[policy] for policy in policies],
    )


def _report_problems(reading: TraceReading, screen: Screen) -> None:
    for problem in reading.problems[:_MAX_SHOWN_PROBLEMS]:
        screen.warn(problem.describe())
    more = reading.num_problems - min(len(reading.problems), _MAX_SHOWN_PROBLEMS)
    if more > 0:
        screen.warn(f"... and {more} more")


# -- output ----------------------------------------------------------------------------


def _document(
    reading: TraceReading, tree: BlockTree, rows: Sequence[_Rows]
) -> dict[str, object]:
    trace = reading.trace
    return {
        "trace": trace.name,
        "format": reading.trace_format.value,
        "block_size": trace.block_size,
        "requests": len(trace.requests),
        "prompt_tokens": trace.num_prompt_tokens,
        "distinct_blocks": tree.num_blocks,
        "problems": reading.num_problems,
        "first_problems": [problem.describe() for problem in reading.problems],
        "results": [
            {
                "capacity": its.capacity.text,
                "blocks": result.num_blocks,
                "policy": result.policy,
                "hit_rate": result.hit_rate,
                "gap_closed": its.gap_closed(result),
                "hit_tokens": result.num_hit_tokens,
                "saved_prefill_ms": result.saved_prefill_ms,
                "evictions": result.num_evictions,
                "evicted_blocks": result.num_evicted_blocks,
                "uncached_requests": result.num_uncached,
            }
            for its in rows
            for result in (*its.results, its.bound)
        ],
    }


def _show(trace: Trace, tree: BlockTree, rows: Sequence[_Rows], screen: Screen) -> None:
    screen.print_line(
        f"{trace.name}: {len(trace.requests):,} requests, {trace.num_prompt_tokens:,} "
        f"prompt tokens, {tree.num_blocks:,} distinct blocks of {trace.block_size}"
    )
    screen.print_line(_line(_HEADER), style="bold")
    for its in rows:
        for result in its.results:
            closed = its.gap_closed(result)
            cells = (
                its.capacity.text,
                f"{result.num_blocks:,}",
                result.policy,
                f"{result.hit_rate:.1%}",
                f"{its.bound.hit_rate:.1%}",
                "-" if closed is None else f"{closed:.0%}",
                _duration(result.saved_prefill_ms / 1000),
                f"{result.num_evicted_blocks:,}",
            )
            screen.print_line(_line(cells))
    largest = max(rows, key=lambda its: its.bound.num_uncached)
    if largest.bound.num_uncached:
        screen.say(
            f"At {largest.capacity.text}, {largest.bound.num_uncached:,} prompts are "
            "larger than the cache and were served without it."
        )


def _line(cells: Sequence[str]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
