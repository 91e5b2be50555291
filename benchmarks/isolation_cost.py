"""Isolation cost: hits that keeping tenants apart takes away, and approving gives back.

Recorded requests are replayed through the cache, a trace's block as one block, for three
ways of sharing and several capacities:

- *one domain*: everybody reads everything, which no service with several tenants may do;
- *apart*: sessions are spread over tenants, each of which reads its own;
- *approved*: the same, and an operator has approved, for everybody, what at least a
  fortieth of all requests begin with.

Give ``--traces`` a directory of traces, ``*_trace.jsonl.gz``: JSON lines where ``r`` is a
prompt as ``[[first block id, count], ...]`` and ``s`` its session, if requests have one.
Without it, requests are made up: agents with a few common system prompts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.cache import APPROVING, READ_WRITE, Access, ApprovalTerms, PrefixCache
from prefold.errors import OutOfBlocksError
from prefold.identity.domain import PUBLIC, Domain
from stand_in import stand_in_fingerprint

#: One token stands for a block of the trace.
_BLOCK_SIZE = 1
_FINGERPRINT = stand_in_fingerprint(_BLOCK_SIZE)

#: Of all requests, the part that has to begin with what is approved.
_COMMON_SHARE = 1 / 40

_SHARED = Domain("shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and who sends it."""

    tokens: TokenIds
    tenant: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hit rates at one capacity: shares of all blocks of all prompts."""

    trace: str
    requests: int
    capacity: str
    blocks: int
    one_domain: float
    apart: float
    approved: float
    approved_prefixes: int


class Replay:
    """Serves requests one after the other and counts their hits."""

    def __init__(self, num_blocks: int) -> None:
        self._cache = PrefixCache(
            num_blocks=num_blocks, block_size=_BLOCK_SIZE, clock=time.monotonic
        )
        self._num_blocks = num_blocks

    def approve(self, prefixes: Sequence[TokenIds]) -> None:
        """Let everybody read prefixes, pinned as far as that is possible."""
        for number, tokens in enumerate(prefixes):
            fits = sum(map(len, prefixes[: number + 1])) < 0.8 * self._num_blocks
            terms = ApprovalTerms(label=f"common {number}", pinned=fits)
            self._run(PUBLIC, tokens, APPROVING, terms)

    def hit_rate(self, requests: Sequence[Request], *, is_shared: bool) -> float:
        """Return the share of the prompts' blocks that were there."""
        num_hits = num_blocks = 0
        for request in requests:
            domain = _SHARED if is_shared else Domain(f"tenant-{request.tenant}")
            num_hits += self._run(domain, request.tokens, READ_WRITE, None)
            num_blocks += len(request.tokens)
        return num_hits / num_blocks

    def _run(
        self, domain: Domain, tokens: TokenIds, access: Access, terms: ApprovalTerms | None
    ) -> int:
        cache = self._cache
        lease = cache.acquire(_FINGERPRINT, domain, tokens, access=access)
        num_hits, computed = lease.num_hit_tokens, lease.num_hit_tokens
        try:
            cache.reserve(lease, len(tokens))
            computed = len(tokens)
            cache.commit(lease, tokens, computed)
            if terms is not None:
                cache.approve(lease, len(tokens), terms)
        except OutOfBlocksError:
            pass  # longer than all of the memory: it hits what it hits, and leaves nothing
        finally:
            cache.release(lease, tokens, computed)
        return num_hits


def main() -> int:
    args = _arguments()
    rows: list[Row] = []
    for name, requests in _workloads(args):
        # A block's id stands for all that came before it, too.
        distinct = len({int(token) for request in requests for token in request.tokens})
        common = _common_prefixes([request.tokens for request in requests])
        for percent in args.capacities:
            longest = max(len(request.tokens) for request in requests)
            num_blocks = max(distinct * percent // 100, 2 * longest)
            apart, approved = Replay(num_blocks), Replay(num_blocks)
            approved.approve(common)
            rows.append(
                Row(
                    trace=name,
                    requests=len(requests),
                    capacity=f"{percent} %",
                    blocks=num_blocks,
                    one_domain=Replay(num_blocks).hit_rate(requests, is_shared=True),
                    apart=apart.hit_rate(requests, is_shared=False),
                    approved=approved.hit_rate(requests, is_shared=False),
                    approved_prefixes=len(common),
                )
            )
    _show(rows, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what isolation costs in hits.")
    parser.add_argument("--traces", type=Path, help="a directory of *_trace.jsonl.gz")
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--capacities", type=int, nargs="+", default=[100, 25, 5])
    parser.add_argument("--requests", type=int, default=3000, help="made up, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _workloads(args: argparse.Namespace) -> Iterator[tuple[str, list[Request]]]:
    generator = random.Random(args.seed)  # noqa: S311 -- a load, not secrets
    if args.traces is None:
        yield "made up", _made_up(args, generator)
        return
    paths = sorted(args.traces.glob("*_trace.jsonl.gz"))
    if not paths:
        raise SystemExit(f"there are no traces in {args.traces}; give another --traces")
    for path in paths:
        yield path.name.split(".")[0], _read(path, args.tenants, generator)


def _read(path: Path, num_tenants: int, generator: random.Random) -> list[Request]:
    tenant_by_session: dict[int, int] = {}
    requests = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            pieces = [np.arange(first, first + count) for first, count in row["r"]]
            tokens = np.concatenate(pieces).astype(np.int64)
            tenant = generator.randrange(num_tenants)
            if "s" in row:
                tenant = tenant_by_session.setdefault(row["s"], tenant)
            requests.append(Request(tokens=tokens, tenant=tenant))
    return requests


def _made_up(args: argparse.Namespace, generator: random.Random) -> list[Request]:
    """Return conversations of growing length that begin with one of ten system prompts."""
    fresh = iter(range(10**12))
    systems = [[next(fresh) for _ in range(generator.randrange(8, 40))] for _ in range(10)]
    requests: list[Request] = []
    while len(requests) < args.requests:
        tenant = generator.randrange(args.tenants)
        tokens = list(systems[min(int(generator.expovariate(0.5)), 9)])
        for _ in range(generator.randrange(1, 6)):
            tokens += [next(fresh) for _ in range(generator.randrange(1, 8))]
            prompt = np.array(tokens, dtype=np.int64)
            requests.append(Request(tokens=prompt, tenant=tenant))
    return requests[: args.requests]


def _common_prefixes(prompts: Sequence[TokenIds]) -> list[TokenIds]:
    """Return the longest prefixes that enough prompts begin with."""
    least = max(2, int(len(prompts) * _COMMON_SHARE))
    found: list[TokenIds] = []
    groups = [(list(prompts), 0)]
    while groups:
        group, depth = groups.pop()
        counts = Counter(int(tokens[depth]) for tokens in group if len(tokens) > depth)
        largest = [token for token, count in counts.items() if count >= least]
        if not largest and depth:
            found.append(group[0][:depth])
        groups += [
            ([t for t in group if len(t) > depth and t[depth] == token], depth + 1)
            for token in largest
        ]
    return found


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"isolation_cost": [asdict(row) for row in rows]}))
        return
    print(
        "trace                   requests  capacity   blocks  one domain  apart  approved"
    )
    for row in rows:
        print(
            f"{row.trace:22}  {row.requests:8d}  {row.capacity:>8}  {row.blocks:7d}  "
            f"{row.one_domain:10.1%}  {row.apart:5.1%}  {row.approved:8.1%}"
        )


if __name__ == "__main__":
    sys.exit(main())
