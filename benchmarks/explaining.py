"""What it costs to be able to explain misses, against what requests cost anyway.

    python benchmarks/explaining.py            a table
    python benchmarks/explaining.py --json     one JSON object on standard output

Recording a request is compared with one matrix product of its prompt, 1,024 tokens by 576
by 1,536 numbers: a step that computes the prompt on the demo model does 210 products of
that size or a fraction of it. A look-up that has to say why it missed is compared with one
that hits. Times are medians over alternating repetitions in one run. Exit code 1 if
recording takes more than a hundredth of the one product, or missing twice what a hit does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np

from prefold.blocks.table import TokenIds
from prefold.cache import MissKind, MissReason, PrefixCache
from prefold.engine.config import RequestOptions
from prefold.engine.request import FinishReason, RequestId, RequestOutput, Timing, Usage
from prefold.identity.domain import Domain
from prefold.server.divergence import find_divergence
from prefold.server.journal import MAX_PROMPTS, Journal
from prefold.server.observer import AskedPrompt, ExchangeId
from stand_in import stand_in_fingerprint

BLOCK = 16
DOMAIN = Domain("bench")
FINGERPRINT = stand_in_fingerprint(BLOCK)
PROMPT, REPLY = 1_024, 128
VOCABULARY = 50_000
REPEATS = 15
#: Recordings, or look-ups, that are timed together.
BATCH = 20


class Recording:
    """A journal that is full, and requests to record in it."""

    def __init__(self, dice: np.random.Generator) -> None:
        head = dice.integers(0, VOCABULARY, PROMPT // 2)
        tails = dice.integers(0, VOCABULARY, (MAX_PROMPTS, PROMPT - len(head)))
        self.prompts: list[TokenIds] = [np.concatenate([head, tail]) for tail in tails]
        self.journal = Journal()
        self._output = _output(tuple(dice.integers(0, VOCABULARY, REPLY).tolist()))
        self._number = 0
        while self._number < MAX_PROMPTS:
            self.record()

    def record(self) -> None:
        for _ in range(BATCH):
            self._number += 1
            request = ExchangeId(
                text=f"r{self._number}", serial=self._number, tenant="bench"
            )
            asked = AskedPrompt(
                token_ids=self.prompts[self._number % MAX_PROMPTS],
                options=RequestOptions(domain=DOMAIN),
                fingerprint=FINGERPRINT,
            )
            self.journal.note_asked(request, [asked])
            self.journal.note_output(request, self._output, prompt=0)

    def compare(self) -> int:
        """Compare the newest prompt with all others; return how many there are."""
        entry = self.journal.latest(1)[0]
        [kept] = self.journal.kept_before([entry])
        if entry.prompt is None or entry.miss is None:
            raise SystemExit("the newest prompt is not kept")
        find_divergence(entry.prompt, entry.miss, kept, lambda ids: " ".join(map(str, ids)))
        return len(kept)


def _output(reply: tuple[int, ...]) -> RequestOutput:
    return RequestOutput(
        request_id=RequestId("request-0"),
        text="",
        token_ids=reply,
        usage=Usage(prompt_tokens=PROMPT, cached_tokens=0, completion_tokens=len(reply)),
        timing=Timing(queued_s=0.0, ttft_s=0.1, tpot_s=0.01, total_s=1.0),
        finish_reason=FinishReason.LENGTH,
        miss_reason=MissReason(kind=MissKind.DIVERGED, at_token=PROMPT // 2),
    )


def measure() -> Mapping[str, float]:
    """Return all figures."""
    dice = np.random.default_rng(0)
    recording = Recording(dice)
    hidden = dice.normal(size=(PROMPT, 576)).astype(np.float32)
    weights = dice.normal(size=(576, 1_536)).astype(np.float32)
    cached = recording.prompts[0]
    cache = PrefixCache(num_blocks=4_096, block_size=BLOCK, clock=time.monotonic)
    lease = cache.acquire(FINGERPRINT, DOMAIN, cached)
    cache.reserve(lease, PROMPT)
    cache.release(lease, cached, PROMPT)
    stranger = cached.copy()
    stranger[0] = VOCABULARY

    def look_up(tokens: TokenIds) -> None:
        for _ in range(BATCH):
            cache.lookup(FINGERPRINT, DOMAIN, tokens)

    works: Mapping[str, Callable[[], object]] = {
        "record": recording.record,
        "product": lambda: hidden @ weights,
        "hit": lambda: look_up(cached),
        "miss": lambda: look_up(stranger),
        "compare": recording.compare,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            started_at = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - started_at)
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "record_us": 1e6 * medians["record"] / BATCH,
        "record_per_product": medians["record"] / BATCH / medians["product"],
        "miss_per_hit": medians["miss"] / medians["hit"],
        "compare_ms": 1e3 * medians["compare"],
        "num_compared": recording.compare(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    figures = measure()
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:.4g}")
    within = figures["record_per_product"] <= 0.01 and figures["miss_per_hit"] <= 2
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
