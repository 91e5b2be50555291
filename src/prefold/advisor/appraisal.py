"""Appraisal: a trace replayed by LRU, and what its prefixes and tenants are worth.

Figures are of one size of cache: as given, or of one that holds everything, which is what
hits could be at most. Whoever names no size is told whether *any* size pays: that of the
curve which is worth most decides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefold.advisor.advice import (
    Advice,
    CapacityPoint,
    Figures,
    HitLengths,
    PrefixWorth,
    Prices,
)
from prefold.advisor.block_tree import BlockTree, grow_block_tree
from prefold.advisor.fair_split import split_fairly, users_of_runs
from prefold.advisor.lru_replay import LruReplay, replay_lru
from prefold.advisor.progress import SILENT, Progress
from prefold.advisor.run_tree import grow_run_tree
from prefold.advisor.trace import Trace, TraceRequest
from prefold.advisor.verdict import Load, Verdict, judge
from prefold.advisor.words import bytes_text
from prefold.advisor.worth import GIB, Reuse, best_and_worst, ratio
from prefold.errors import InvalidInputError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Tenants that are told one by one, those with most requests; the rest are one more.
MAX_TENANTS = 200
OTHERS = "(others)"

#: Sizes of the curve, as powers of two that divide what holds everything, and the machine.
_PARTS_OF_ALL = (0, 1, 3, 5, 7)
_PARTS_OF_MACHINE = (0, 1, 3)

#: Runs of ids a prompt, on average, from which single ids are faster to compare.
_MANY_RUNS = 24

#: Often enough for a bar, and rare enough to cost nothing.
_REQUESTS_A_REPORT = 4096


def appraise(
    trace: Trace,
    prices: Prices,
    *,
    capacity_bytes: float | None = None,
    has_times: bool = True,
    progress: Progress = SILENT,
) -> Advice:
    """Return what a prefix cache is worth on a trace.

    O(runs on the paths of all prompts) for each size, in Python; see ``lru_replay``.

    Args:
        trace: With its requests in the order of their arrival.
        prices: Of time and memory.
        capacity_bytes: Of the cache; None for one that holds everything.
        has_times: Whether the arrivals were recorded. If not, only what needs no time
            is said.
        progress: Told about the steps.

    Raises:
        InvalidInputError: ``capacity_bytes`` is less than a block has.
    """
    facts = _Facts.of(trace, prices, progress, has_times=has_times)
    progress.begin("Replaying with room for everything", len(trace.requests))
    all_held = facts.replay(None, progress.advance)
    main = all_held
    if capacity_bytes is not None:
        num_blocks = int(capacity_bytes / facts.block_bytes)
        if num_blocks < 1:
            raise InvalidInputError(
                f"a cache of {capacity_bytes:,.0f} bytes is less than a block of "
                f"{facts.block_bytes:,.0f}; give it more"
            )
        if num_blocks < all_held.peak_blocks:
            progress.begin("Replaying", len(trace.requests))
            main = facts.replay(num_blocks, progress.advance)
    points = _curve(facts, all_held, progress)
    decisive = main
    if capacity_bytes is None:
        decisive = _decisive(facts, points, all_held)
    best, worst = _named_prefixes(facts, main)
    return Advice(
        name=trace.name,
        prices=prices,
        verdict=facts.verdict(decisive, all_held),
        verdict_bytes=facts.size_of(decisive),
        total=facts.figures(None, facts.everybody, main, all_held, main.block_s),
        tenants=_tenants(facts, main, all_held),
        best=best,
        worst=worst,
        curve=tuple(facts.point(it) for it in points),
        capacity_bytes=capacity_bytes,
        peak_bytes=main.peak_blocks * facts.block_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Facts:
    """A trace and its prices, as arrays.

    Attributes:
        span_s: None where times are not known, or all are one.
    """

    trace: Trace
    prices: Prices
    tree: BlockTree
    arrivals: list[float]
    prompt_tokens: Ints
    output_tokens: Ints
    span_s: float | None

    @classmethod
    def of(
        cls, trace: Trace, prices: Prices, progress: Progress, *, has_times: bool
    ) -> _Facts:
        requests = trace.requests
        progress.begin("Finding what prompts share", len(requests))
        tree = _grow(trace, progress)
        arrivals = [request.arrival_s for request in requests]
        span = arrivals[-1] - arrivals[0] if arrivals and has_times else 0.0
        return cls(
            trace=trace,
            prices=prices,
            tree=tree,
            arrivals=arrivals,
            prompt_tokens=_ints(request.num_prompt_tokens for request in requests),
            output_tokens=_ints(request.num_output_tokens for request in requests),
            span_s=span or None,
        )

    @property
    def block_bytes(self) -> float:
        return self.trace.block_size * self.prices.bytes_per_token

    def replay(
        self, num_blocks: int | None, on_progress: Callable[[int], None]
    ) -> LruReplay:
        return replay_lru(self.tree, self.arrivals, num_blocks, on_progress=on_progress)

    def size_of(self, replayed: LruReplay) -> float:
        """Return the bytes that a cache has to have to do the same."""
        return (replayed.num_blocks or replayed.peak_blocks) * self.block_bytes

    @property
    def machine_blocks(self) -> int:
        """Blocks that the machine has room for."""
        return int(self.prices.thresholds.price.machine_bytes / self.block_bytes)

    @property
    def everybody(self) -> Bools:
        return np.ones(len(self.arrivals), dtype=np.bool_)

    def verdict(self, replayed: LruReplay, all_held: LruReplay) -> Verdict:
        """Return the verdict on all requests, with a cache of that size."""
        load = self.load(self.everybody, replayed, all_held, replayed.block_s)
        given = f"with a cache of {bytes_text(self.size_of(replayed))}"
        return judge(load, self.prices.thresholds, given=given)

    def load(
        self, chosen: Bools, replayed: LruReplay, all_held: LruReplay, block_s: float
    ) -> Load:
        """Return the sums of the chosen requests, of which ``block_s`` is held."""
        tokens = self.prompt_tokens[chosen]
        hits = replayed.hit_blocks[chosen] * self.trace.block_size
        median = float(np.median(tokens)) if len(tokens) else 0.0
        return Load(
            num_requests=len(tokens),
            num_prompt_tokens=int(tokens.sum()),
            num_repeated_tokens=int(all_held.hit_blocks[chosen].sum())
            * self.trace.block_size,
            num_hit_tokens=int(hits.sum()),
            median_prompt_tokens=median,
            median_prefill_ms=self.prices.prefill_ms(0, median),
            prefill_ms=self.prices.sum_ms(tokens),
            decode_ms=self.prices.decode_ms * float(self.output_tokens[chosen].sum()),
            saved_ms=self.prices.sum_ms(hits),
            span_s=self.span_s,
            held_bytes=self.mean_bytes(block_s),
        )

    def figures(
        self,
        name: str | None,
        chosen: Bools,
        replayed: LruReplay,
        all_held: LruReplay,
        block_s: float,
    ) -> Figures:
        load = self.load(chosen, replayed, all_held, block_s)
        size = self.trace.block_size
        repeated_ms = self.prices.sum_ms(all_held.hit_blocks[chosen] * size)
        return Figures(
            name=name,
            load=load,
            hit_lengths=HitLengths.of(replayed.hit_blocks[chosen] * size),
            evicted_ms=max(repeated_ms - load.saved_ms, 0.0),
            verdict=judge(load, self.prices.thresholds),
        )

    def point(self, replayed: LruReplay) -> CapacityPoint:
        hits = replayed.hit_blocks * self.trace.block_size
        saved_ms = self.prices.sum_ms(hits)
        held_bytes, span_s = self.mean_bytes(replayed.block_s), self.span_s
        return CapacityPoint(
            num_bytes=self.size_of(replayed),
            num_blocks=replayed.num_blocks or replayed.peak_blocks,
            hit_rate=ratio(int(hits.sum()), int(self.prompt_tokens.sum())),
            saved_ms=saved_ms,
            held_bytes=held_bytes,
            net_ms_per_s=None
            if span_s is None
            else saved_ms / span_s
            - self.prices.thresholds.price.ms_per_gib_s * held_bytes / GIB,
        )

    def mean_bytes(self, block_s: float) -> float:
        """Return the bytes held on average, of which ``block_s`` is the sum."""
        # Where no times are known, requests come a second apart.
        span = self.arrivals[-1] - self.arrivals[0] if self.arrivals else 0.0
        return ratio(block_s * self.block_bytes, span) if span else 0.0


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _grow(trace: Trace, progress: Progress) -> BlockTree:
    requests = trace.requests
    num_runs = sum(len(request.runs) for request in requests)
    counted = _reported(requests, progress)
    if num_runs <= _MANY_RUNS * len(requests):
        return grow_run_tree(request.runs for request in counted)
    return grow_block_tree(request.block_ids() for request in counted)


def _reported(
    requests: Sequence[TraceRequest], progress: Progress
) -> Iterator[TraceRequest]:
    for number, request in enumerate(requests):
        if number % _REQUESTS_A_REPORT == 0:
            progress.advance(number)
        yield request


def _curve(facts: _Facts, all_held: LruReplay, progress: Progress) -> list[LruReplay]:
    """Return replays of several sizes, the smallest first."""
    most = all_held.peak_blocks
    machine = facts.machine_blocks
    wanted = {most >> power for power in _PARTS_OF_ALL}
    wanted |= {machine >> power for power in _PARTS_OF_MACHINE}
    sizes = sorted(size for size in wanted if 0 < size < most)
    num_requests = len(facts.arrivals)
    progress.begin("Replaying smaller caches", len(sizes) * num_requests)
    smaller = [
        facts.replay(size, _counting_from(place * num_requests, progress))
        for place, size in enumerate(sizes)
    ]
    return [*smaller, all_held]


def _counting_from(begin: int, progress: Progress) -> Callable[[int], None]:
    return lambda done: progress.advance(begin + done)


def _decisive(facts: _Facts, points: Sequence[LruReplay], all_held: LruReplay) -> LruReplay:
    """Return the size that is worth most of those that pay.

    If none does, the largest. What the machine has not is not looked at.
    """
    fitting = [
        each
        for each in points
        if (each.num_blocks or each.peak_blocks) <= facts.machine_blocks
    ]
    best, most = (fitting or points[:1])[-1], -math.inf
    for each in fitting:
        point = facts.point(each)
        net = point.saved_ms if point.net_ms_per_s is None else point.net_ms_per_s
        if net > most and facts.verdict(each, all_held).pays:
            best, most = each, net
    return best


def _tenants(
    facts: _Facts, replayed: LruReplay, all_held: LruReplay
) -> tuple[Figures, ...]:
    """Return the figures of each tenant, with its fair share of what is held."""
    names = [request.tenant for request in facts.trace.requests]
    counts = Counter(names)
    if not set(counts) - {None}:
        return ()
    told = [name for name, _ in counts.most_common(MAX_TENANTS)]
    shown: list[str | None] = [*told, OTHERS] if len(counts) > len(told) else told
    number_of = {name: number for number, name in enumerate(told)}
    users = _ints(number_of.get(name, len(told)) for name in names)
    served = zip(users.tolist(), replayed.is_cached.tolist(), strict=True)
    users_of = users_of_runs(
        facts.tree, [user if is_in else None for user, is_in in served]
    )
    owed = split_fairly(replayed.run_block_s.tolist(), users_of, len(shown))
    return tuple(
        facts.figures(name, users == number, replayed, all_held, owed[number])
        for number, name in enumerate(shown)
    )


def _named_prefixes(
    facts: _Facts, replayed: LruReplay
) -> tuple[tuple[PrefixWorth, ...], tuple[PrefixWorth, ...]]:
    """Return the prefixes that are worth most, and those worth least."""
    tree, prices = facts.tree, facts.prices
    size = facts.trace.block_size
    begins = (tree.depths * size).astype(np.float64)
    ends = begins + tree.lengths * size
    pairs = (ends - begins) * np.maximum(begins + ends - 1, 0) / 2
    fit = prices.prefill
    once_ms = 1000 * (fit.per_token * (ends - begins) + fit.per_pair * pairs)
    reuses = replayed.run_hits / np.maximum(tree.lengths, 1)
    saved_ms = once_ms * reuses
    held = replayed.run_block_s * facts.block_bytes
    price = prices.thresholds.price.ms_per_gib_s if facts.span_s else 0.0
    net_ms = saved_ms - price * held / GIB
    order = np.argsort(-net_ms, kind="stable")
    order = order[order != 0]
    num_uses, firsts = _uses(tree)

    def named(run: int) -> PrefixWorth:
        reuse = None
        if facts.span_s:
            reuse = Reuse(
                saved_ms=float(once_ms[run]),
                held_bytes=float(tree.lengths[run]) * facts.block_bytes,
                per_s=float(reuses[run]) / facts.span_s,
            )
        return PrefixWorth(
            first_request=int(firsts[run]) + 1,
            begin=int(begins[run]),
            end=int(ends[run]),
            num_uses=int(num_uses[run]),
            saved_ms=float(saved_ms[run]),
            held_byte_s=float(held[run]),
            net_ms=float(net_ms[run]),
            reuse=reuse,
            break_even_per_s=None
            if reuse is None
            else reuse.break_even_per_s(prices.thresholds.price),
        )

    best, worst = best_and_worst(order.tolist())
    return tuple(map(named, best)), tuple(map(named, worst))


def _uses(tree: BlockTree) -> tuple[Ints, Ints]:
    """Return how many requests use each run, and which is the first. O(runs)."""
    num_runs, num_requests = len(tree.parents), len(tree.ends)
    uses: list[int] = np.bincount(tree.ends, minlength=num_runs).tolist()
    begun = np.full(num_runs, num_requests, dtype=np.int64)
    np.minimum.at(begun, tree.ends, np.arange(num_requests))
    firsts: list[int] = begun.tolist()
    parents: list[int] = tree.parents.tolist()
    for run in np.argsort(-tree.depths, kind="stable").tolist():
        if run:
            parent = parents[run]
            uses[parent] += uses[run]
            firsts[parent] = min(firsts[parent], firsts[run])
    return _ints(uses), _ints(firsts)
