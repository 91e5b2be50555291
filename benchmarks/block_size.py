"""Block size: hits, metadata, time and lost KV for blocks of 4 to 128 tokens.

The prompts of ``prefold demo`` are replayed through the real cache, with scripted replies
and no model, once for every block size. Reported for each:

- hit tokens of every scenario, and as a share of all prompt tokens;
- bytes of metadata for a cached token;
- time to match, and to publish in one call, the longest prompt;
- KV slots that hold nothing: the unfilled ends of last blocks, and tokens that stand
  twice because the block around them was copied.

Times are medians; the block sizes take turns, so that a slower machine slows all alike.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.cache import PrefixCache
from prefold.engine.assembly import Silence
from prefold.engine.demo_model import ensure_demo_model
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from scripted_tour import Asked, record_tour
from stand_in import stand_in_fingerprint

_BLOCK_SIZES = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one block size did."""

    hits: dict[str, int]
    num_prompt_tokens: int
    num_blocks: int
    num_distinct_tokens: int
    metadata_bytes: int


def main() -> int:
    args = _arguments()
    asked = record_tour(args.model or str(ensure_demo_model(Silence())))
    outcomes = {size: _replay(asked, size) for size in args.sizes}
    longest = max((each.prompt for each in asked), key=len)
    times = _times(longest, args.sizes, args.rounds)
    rows: list[dict[str, object]] = [
        {
            "block_size": size,
            **{f"hits_{key}": value for key, value in outcome.hits.items()},
            "hit_share": sum(outcome.hits.values()) / outcome.num_prompt_tokens,
            "metadata_bytes": outcome.metadata_bytes / outcome.num_distinct_tokens,
            "match_ms": times[size][0],
            "publish_ms": times[size][1],
            "blocks": outcome.num_blocks,
            "lost_slot_share": 1
            - outcome.num_distinct_tokens / (outcome.num_blocks * size),
        }
        for size, outcome in outcomes.items()
    ]
    report = {
        "prompts": len(asked),
        "prompt_tokens": sum(len(each.prompt) for each in asked),
        "timed_prompt_tokens": len(longest),
        "rows": rows,
    }
    if args.json:
        print(json.dumps(report))
    else:
        _show(rows)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare block sizes.")
    parser.add_argument("--model", help="whose tokenizer to use; the demo model by default")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(_BLOCK_SIZES))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _replay(asked: Sequence[Asked], size: int) -> Outcome:
    fingerprint = stand_in_fingerprint(size)
    num_tokens = sum(len(each.prompt) + len(each.reply) + size for each in asked)
    tracemalloc.start()
    cache = PrefixCache(
        num_blocks=2 * num_tokens // size, block_size=size, clock=time.monotonic
    )
    empty_bytes = tracemalloc.get_traced_memory()[0]
    hits: dict[str, int] = {}
    for each in asked:
        hit = _serve(cache, fingerprint, each)
        hits[each.scenario] = hits.get(each.scenario, 0) + hit
    metadata_bytes = tracemalloc.get_traced_memory()[0] - empty_bytes
    tracemalloc.stop()
    cache.check_invariants()
    return Outcome(
        hits=hits,
        num_prompt_tokens=sum(len(each.prompt) for each in asked),
        num_blocks=cache.counts.idle,
        num_distinct_tokens=_count_distinct(asked),
        metadata_bytes=metadata_bytes,
    )


def _serve(cache: PrefixCache, fingerprint: Fingerprint, each: Asked) -> int:
    """Do with the cache what the engine does for one request; return its hit tokens."""
    known = np.concatenate([each.prompt, each.reply])
    computed = len(known) - 1
    lease = cache.acquire(fingerprint, Domain(each.scenario), each.prompt)
    hit = lease.num_hit_tokens
    cache.reserve(lease, computed)
    if lease.pending_copy is not None:
        cache.copied(lease)
    cache.release(lease, known, computed)
    return hit


def _count_distinct(asked: Sequence[Asked]) -> int:
    """Count the tokens that are cached, each with all before it, once."""
    distinct: set[tuple[str, bytes]] = set()
    for each in asked:
        known = np.concatenate([each.prompt, each.reply])[:-1].astype(np.int64)
        raw = known.tobytes()
        distinct |= {(each.scenario, raw[: 8 * n]) for n in range(1, len(known) + 1)}
    return len(distinct)


def _times(
    prompt: TokenIds, sizes: Sequence[int], rounds: int
) -> dict[int, tuple[float, float]]:
    matches: dict[int, list[float]] = {size: [] for size in sizes}
    publishes: dict[int, list[float]] = {size: [] for size in sizes}
    domain = Domain("timed")
    for _ in range(rounds):
        for size in sizes:
            fingerprint = stand_in_fingerprint(size)
            cache = PrefixCache(
                num_blocks=len(prompt) // size + 2, block_size=size, clock=time.monotonic
            )
            lease = cache.acquire(fingerprint, domain, prompt)
            cache.reserve(lease, len(prompt))
            started_at = time.perf_counter()
            cache.commit(lease, prompt, len(prompt))
            publishes[size].append(1e3 * (time.perf_counter() - started_at))
            cache.release(lease, prompt, len(prompt))
            started_at = time.perf_counter()
            cache.lookup(fingerprint, domain, prompt)
            matches[size].append(1e3 * (time.perf_counter() - started_at))
    return {size: (median(matches[size]), median(publishes[size])) for size in sizes}


def _show(rows: Sequence[dict[str, object]]) -> None:
    names = list(rows[0])
    print("  ".join(f"{name:>12.12}" for name in names))
    for row in rows:
        cells = (
            f"{value:>12.3f}" if isinstance(value, float) else f"{value:>12}"
            for value in row.values()
        )
        print("  ".join(cells))


if __name__ == "__main__":
    sys.exit(main())
