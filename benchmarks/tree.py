"""How fast the prefix tree matches, publishes and evicts, and what it holds per block.

    python benchmarks/tree.py            a table, with each bound and whether it holds
    python benchmarks/tree.py --json     one JSON object on standard output

Times are medians over alternating repetitions, so that a busy moment of the machine
meets every figure alike; the fastest repetition is given as well. Exit code 1 if a
bound is not met.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from prefold.blocks.pool import BlockPool
from prefold.blocks.table import TokenIds
from prefold.cache import PrefixCache
from prefold.identity.domain import Domain
from stand_in import stand_in_fingerprint

BLOCK = 16
VOCABULARY = 50_000
DOMAIN = Domain("bench")
FINGERPRINT = stand_in_fingerprint(BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything; the full ones are those the bounds are for."""

    prompt: int
    repeats: int
    cached: tuple[int, ...]
    siblings: int


FULL = Sizes(
    prompt=131_072, repeats=25, cached=(1_000, 100_000, 1_000_000), siblings=100_000
)
# Enough blocks that what does not grow with them is next to nothing a block.
SMALL = Sizes(prompt=2_048, repeats=3, cached=(100, 1_000, 51_200), siblings=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value; ``bound`` is the most it may be, None for a mere report."""

    name: str
    value: float
    unit: str
    best: float | None = None
    bound: float | None = None

    @property
    def passed(self) -> bool | None:
        return None if self.bound is None else self.value <= self.bound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument("--small", action="store_true", help="small sizes, to try it out")
    arguments = parser.parse_args()
    sizes = SMALL if arguments.small else FULL
    figures: list[Figure] = []
    for part in (long_prompt, conversation, many_blocks, siblings):
        _say(f"{part.__name__.replace('_', ' ')} ...")
        figures += part(sizes)
    passed = all(figure.passed is not False for figure in figures)
    if arguments.json:
        rows = [{**asdict(figure), "passed": figure.passed} for figure in figures]
        result = {"sizes": asdict(sizes), "passed": passed, "figures": rows}
        print(json.dumps(result))
    else:
        _print_table(figures)
    return 0 if passed else 1


# -- parts -----------------------------------------------------------------------------


def long_prompt(sizes: Sizes) -> list[Figure]:
    """One long prompt: match against SHA-256, publish, evict."""
    tokens = _random_tokens(0, sizes.prompt + 1)
    times: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[[], object]) -> None:
        times.setdefault(name, []).append(_seconds(action))

    cache = _make_cache(2 * sizes.prompt // BLOCK)
    whole = tokens[: sizes.prompt]
    for _ in range(sizes.repeats):
        lease = cache.acquire(FINGERPRINT, DOMAIN, whole)
        cache.reserve(lease, sizes.prompt)
        timed("publish", partial(cache.commit, lease, whole, sizes.prompt))
        cache.release(lease, whole, sizes.prompt)
        for _ in range(3):
            timed("match", lambda: cache.lookup(FINGERPRINT, DOMAIN, tokens))
        timed("sha256", lambda: _chain_sha256(whole))
        timed("acquire", lambda: _touch(cache, tokens))
        filler = cache.acquire(FINGERPRINT, DOMAIN, _random_tokens(1, 1))
        cache.reserve(filler, sizes.prompt)
        # What is idle now is exactly the prompt, and all of it has to go.
        timed("evict", partial(cache.reserve, filler, 2 * sizes.prompt))
        cache.release(filler, filler.tokens, 0)
    sha = statistics.median(times["sha256"])
    match = statistics.median(times["match"])
    return [
        _time("match a cached prompt", times["match"], bound=0.3),
        _time("chain SHA-256 over its blocks", times["sha256"]),
        Figure(name="match / SHA-256", value=match / sha, unit="ratio", bound=1 / 25),
        _time("acquire and release", times["acquire"]),
        _time("publish in one call", times["publish"], bound=1.0),
        _time("evict all", times["evict"], bound=1.0),
        *(_publish_in_chunks(tokens, chunk) for chunk in (512, BLOCK)),
    ]


def _publish_in_chunks(tokens: TokenIds, chunk: int) -> Figure:
    cache = _make_cache(len(tokens) // BLOCK + 8)
    calls = _serve(cache, tokens, chunk)
    return Figure(
        name=f"publish in chunks of {chunk}, in all",
        value=1e3 * sum(calls),
        unit="ms",
        best=1e3 * statistics.median(calls),
    )


def conversation(sizes: Sizes) -> list[Figure]:
    """A conversation published block by block, repeated, and cut at every prefix."""
    tokens = _random_tokens(2, sizes.prompt)
    # The last turn begins where the first half ends; it is decoded token by token.
    cache = _make_cache(2 * sizes.prompt // BLOCK)
    figures = []

    def measure(when: str) -> int:
        times = [
            _seconds(lambda: cache.lookup(FINGERPRINT, DOMAIN, tokens))
            for _ in range(sizes.repeats)
        ]
        figures.append(_time(f"match it {when}", times, bound=1.0))
        return cache.snapshot().num_nodes

    _serve(cache, tokens, BLOCK)
    first = measure("once published block by block")
    for _ in range(3):
        _serve(cache, tokens, BLOCK, start=sizes.prompt // 2)
    after_repeats = measure("after it was served three times")
    for end in range(BLOCK, sizes.prompt + 1, BLOCK):
        _touch(cache, tokens[: end + 1])
    after_prefixes = measure("after every prefix was acquired")
    more = max(after_repeats, after_prefixes) - first
    figures.append(Figure(name="nodes after the first time", value=first, unit="nodes"))
    # What more requests begin with than the next part, by a power of two, stays apart.
    bound = sizes.prompt.bit_length()
    figures.append(
        Figure(name="nodes more after that", value=more, unit="nodes", bound=bound)
    )
    return figures


def many_blocks(sizes: Sizes) -> list[Figure]:
    """Runs of 32 blocks: bytes of metadata a block, and whether matching stays flat."""
    run = 32 * BLOCK
    probe = _random_tokens(3, run + 1)
    times: list[list[float]] = []
    caches = []
    figures = []
    for num_blocks in sizes.cached:
        is_largest = num_blocks == sizes.cached[-1]
        gc.collect()
        if is_largest:
            tracemalloc.start()
        cache = _make_cache(num_blocks + 64)
        pool_bytes = _pool_bytes(num_blocks + 64)
        _serve(cache, probe, run)
        for number in range(num_blocks // 32 - 1):
            _serve(cache, _random_tokens(10 + number, run), run)
        if is_largest:
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            cached = cache.counts.idle
            figures += [
                _bytes("metadata", held / cached, bound=200),
                _bytes("of these, pool arrays", pool_bytes / cached),
                _bytes("of these, token ids", 8 * BLOCK),
            ]
        caches.append(cache)
        times.append([])
    for _ in range(20 * sizes.repeats):
        for cache, its in zip(caches, times, strict=True):
            its.append(_seconds(partial(cache.lookup, FINGERPRINT, DOMAIN, probe)))
    for num_blocks, its in zip(sizes.cached, times, strict=True):
        figures.append(_time(f"match 512 tokens among {num_blocks:,} blocks", its))
    figures.append(_growth("match, most / fewest blocks", times[-1], times[0]))
    return figures


def siblings(sizes: Sizes) -> list[Figure]:
    """Many prompts that go on differently after one prefix."""
    prefix = _random_tokens(4, 32 * BLOCK)
    times: list[list[float]] = []
    caches = []
    probe = np.concatenate([prefix, _random_tokens(5, 2 * BLOCK + 1)])
    for num_siblings in (10, sizes.siblings):
        cache = _make_cache(num_siblings + 256)
        _serve(cache, probe, len(probe))
        for number in range(num_siblings):
            prompt = np.concatenate([prefix, _random_tokens(100 + number, BLOCK)])
            _serve(cache, prompt, len(prompt))
        caches.append(cache)
        times.append([])
    for _ in range(20 * sizes.repeats):
        for cache, its in zip(caches, times, strict=True):
            its.append(_seconds(partial(cache.lookup, FINGERPRINT, DOMAIN, probe)))
    return [
        _time(f"match beside {sizes.siblings:,} siblings", times[1]),
        _growth("match, most / fewest siblings", times[1], times[0]),
    ]


# -- measuring -------------------------------------------------------------------------


def _serve(cache: PrefixCache, tokens: TokenIds, chunk: int, start: int = 0) -> list[float]:
    """Publish a prompt chunk by chunk from ``start`` on; return each call's seconds."""
    lease = cache.acquire(FINGERPRINT, DOMAIN, tokens[: start + 1])
    cache.reserve(lease, len(tokens))
    if lease.pending_copy is not None:
        cache.copied(lease)
    begin = lease.num_published_tokens
    calls = []
    end = begin
    for end in range(begin + chunk, len(tokens) + 1, chunk):
        calls.append(_seconds(partial(cache.commit, lease, tokens[:end], end)))
    cache.release(lease, tokens, end // BLOCK * BLOCK)
    return calls


def _touch(cache: PrefixCache, tokens: TokenIds) -> None:
    lease = cache.acquire(FINGERPRINT, DOMAIN, tokens)
    cache.release(lease, tokens, lease.num_published_tokens)


def _make_cache(num_blocks: int) -> PrefixCache:
    return PrefixCache(num_blocks=num_blocks, block_size=BLOCK, clock=time.monotonic)


def _random_tokens(seed: int, num_tokens: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, VOCABULARY, num_tokens, dtype=np.int64)


def _chain_sha256(tokens: TokenIds) -> bytes:
    data = tokens.tobytes()
    size = BLOCK * tokens.itemsize
    digest = b""
    for at in range(0, len(data), size):
        digest = hashlib.sha256(digest + data[at : at + size]).digest()
    return digest


def _pool_bytes(num_blocks: int) -> int:
    pool = BlockPool(num_blocks)
    return num_blocks * (1 + pool.allocate(1).itemsize)  # a state and a free-list entry


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _time(name: str, seconds: list[float], *, bound: float | None = None) -> Figure:
    return Figure(
        name=name,
        value=1e3 * statistics.median(seconds),
        unit="ms",
        best=1e3 * min(seconds),
        bound=bound,
    )


def _growth(name: str, more: list[float], fewer: list[float]) -> Figure:
    # Caches of different sizes differ in what the processor still has at hand, so half
    # as much again is no growth.
    return Figure(
        name=name,
        value=statistics.median(more) / statistics.median(fewer),
        unit="ratio",
        best=min(more) / min(fewer),
        bound=1.5,
    )


def _bytes(name: str, value: float, *, bound: float | None = None) -> Figure:
    return Figure(name=f"{name}, a block", value=value, unit="bytes", bound=bound)


# -- printing --------------------------------------------------------------------------


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_table(figures: list[Figure]) -> None:
    print(f"{'':44}{'median':>12}{'best':>12}{'bound':>10}")
    for figure in figures:
        best = "" if figure.best is None else f"{figure.best:.3f}"
        bound = "" if figure.bound is None else f"{figure.bound:g}"
        verdict = {None: "", True: "met", False: "NOT MET"}[figure.passed]
        print(
            f"{figure.name:44}{figure.value:12.3f}{best:>12}{bound:>10} "
            f"{figure.unit:6}{verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
