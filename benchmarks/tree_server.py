"""Tree server: a tiny model behind the real server, with a prefix tree of a given size.

Half of the runs continue one run, and the others are what prompts begin with, but for
some that branch off a deep path. Nothing computed them: the page shows what is filed, not
the KV.

Run with a directory and a number of runs, it serves until SIGTERM comes or its standard
input ends, and prints one JSON line about where, and how long a page of the tree keeps the
engine's thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from padded_server import BLOCK_SIZE, save_tiny_model
from prefold.blocks.table import TokenIds
from prefold.cache import PrefixCache
from prefold.engine.assembly import assemble
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.server.config import CacheConfig, ModelConfig, PrefoldConfig, ServerConfig
from prefold.server.listen import listen, url_of
from prefold.server.planes import run_planes
from prefold.server.serve import make_planes, model_settings, open_doors, served_model

#: Blocks beside those of the runs.
SPARE_BLOCKS = 1_024

#: Runs on the deep path, and most that branch off one of them.
DEPTH = 60
MAX_BRANCHES = 40

DOMAINS = [Domain(f"team-{number}") for number in range(20)]
WIDEST = Domain("widest")


def serve() -> int:
    """Serve until SIGTERM comes or standard input ends."""
    directory, num_runs = Path(sys.argv[1]), int(sys.argv[2])
    os.environ.setdefault("PREFOLD_CACHE_DIR", str(directory / "cache"))
    os.environ.setdefault("PREFOLD_MASTER_SECRET_FILE", str(directory / "secret"))
    num_blocks = num_runs + SPARE_BLOCKS
    config = PrefoldConfig(
        model=ModelConfig(source=str(save_tiny_model(directory / "tiny")), num_threads=1),
        cache=CacheConfig(blocks=num_blocks, block_size=BLOCK_SIZE),
        server=ServerConfig(
            port=0, admin_port=0, admin_token_file=directory / "admin_token"
        ),
    )
    doors = open_doors(config)
    with listen(config.server) as listeners:
        assembly = assemble(config.model.source, model_settings(config))
        cache = assembly.parts.cache
        fill(cache, assembly.parts.fingerprint, num_runs)
        model = served_model(assembly, config)
        planes = make_planes(config, doors, assembly.parts, model)
        ready = {
            "url": url_of(listeners.admin),
            "token": (directory / "admin_token").read_text().strip(),
            "num_runs": cache.snapshot().num_nodes,
            "pauses_ms": page_pauses_ms(cache),
        }

        def announce() -> None:
            print(json.dumps(ready), flush=True)
            threading.Thread(target=_end_with_standard_input, daemon=True).start()

        asyncio.run(run_planes(planes, listeners, drain_s=0.0, on_started=announce))
    return 0


def fill(cache: PrefixCache, fingerprint: Fingerprint, num_runs: int) -> None:
    """File so many runs of one block each."""
    rng = np.random.default_rng(0)

    def some(num_blocks: int = 1) -> TokenIds:
        return rng.integers(0, 256, num_blocks * BLOCK_SIZE, dtype=np.int64)

    def file(domain: Domain, tokens: TokenIds) -> None:
        lease = cache.acquire(fingerprint, domain, tokens)
        cache.reserve(lease, len(tokens))
        if lease.pending_copy is not None:
            cache.copied(lease)
        cache.release(lease, tokens, len(tokens))

    num_wide = num_runs // 2
    # Those at the end of a long path take long to file, each.
    num_deep = min(num_runs // 4, DEPTH * MAX_BRANCHES)
    num_flat = num_runs - num_wide - num_deep
    for number in range(num_flat):
        file(DOMAINS[number % len(DOMAINS)], some())
    path = some(DEPTH)
    for number in range(num_deep):
        cut = BLOCK_SIZE * (1 + number % DEPTH)
        file(DOMAINS[0], np.concatenate([path[:cut], some()]))
    # Last, so that it is the first that the page shows.
    top = some()
    for _ in range(num_wide):
        file(WIDEST, np.concatenate([top, some()]))


def page_pauses_ms(cache: PrefixCache) -> dict[str, float]:
    """Return how long the largest pages and searches take, in ms: medians of nine."""
    browser = cache.browser
    page = browser.children(None, limit=1, num_text_tokens=0)
    if page is None or not page.runs:
        raise RuntimeError("the tree is empty")
    widest = page.runs[0].handle
    last = page.following
    while True:
        page = browser.children(None, limit=200, num_text_tokens=0, cursor=last)
        if page is None or page.following is None:
            break
        last = page.following
    asked: dict[str, Callable[[], object]] = {
        "beginnings": lambda: browser.children(None, limit=200, num_text_tokens=32),
        "the last beginnings": lambda: browser.children(
            None, limit=200, num_text_tokens=32, cursor=last
        ),
        "children of the widest": lambda: browser.children(
            widest, limit=200, num_text_tokens=32
        ),
        "domains": lambda: browser.find_domain("team-7", limit=50, num_text_tokens=32),
    }
    pauses = {}
    for name, ask in asked.items():
        times = []
        for _ in range(9):
            began = time.perf_counter()
            ask()
            times.append(1e3 * (time.perf_counter() - began))
        pauses[name] = statistics.median(times)
    return pauses


def _end_with_standard_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(serve())
