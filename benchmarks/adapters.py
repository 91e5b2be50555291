"""Adapters: what mixed batches cost beside base-only ones, and warm requests with one.

Two figures, each a ratio of two things measured in turn in one process:

    mixed    a batch of 16 over 8 adapters and the model, against the same without adapters:
             seconds for all of a step's rows, in decode steps and in prefill
    warm     time to first token of a prompt that is cached but for its end, with an adapter
             against without

The adapters are random: r=16 on q, k, v and o of every layer.

    python benchmarks/adapters.py --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from prefold.engine.adapter_config import CONFIG_NAME
from prefold.engine.adapter_weights import WEIGHTS_NAME
from prefold.engine.assembly import Assembly, assemble
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.engine.request import SamplingParams

RANK = 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
NUM_ADAPTERS = 8
NUM_ROWS = 16


def write_adapter(assembly: Assembly, directory: Path, seed: int) -> Path:
    """Write a random adapter of the model."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in assembly.loaded.linears.items():
        if name.endswith(TARGETS):
            key = f"base_model.model.{name}"
            down = torch.randn(RANK, shape.in_features, generator=generator)
            up = torch.randn(shape.out_features, RANK, generator=generator)
            tensors[f"{key}.lora_A.weight"] = down * 0.02
            tensors[f"{key}.lora_B.weight"] = up * 0.02
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": list(TARGETS),
    }
    directory.mkdir()
    (directory / CONFIG_NAME).write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, directory / WEIGHTS_NAME)
    return directory


def median_ratio(
    one: Callable[[], float], other: Callable[[], float], num_rounds: int
) -> dict[str, float]:
    """Measure both in turn; return their medians, and that of the ratios."""
    one(), other()
    pairs = []
    for number in range(num_rounds):
        # Whoever is first has the caches of the other: take turns.
        order = (one, other) if number % 2 else (other, one)
        took = {each: each() for each in order}
        pairs.append((took[one], took[other]))
    return {
        "with_ms": 1000 * statistics.median(a for a, _ in pairs),
        "without_ms": 1000 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def timed(call: Callable[[], object], num_times: int) -> float:
    """Return seconds of one call, on average."""
    started = time.perf_counter()
    for _ in range(num_times):
        call()
    return (time.perf_counter() - started) / num_times


class Bench:
    """An engine with all adapters, and prompts that nothing has seen."""

    def __init__(self, engine: Engine, names: list[str | None]) -> None:
        self.engine = engine
        self.names = names
        self.rng = np.random.default_rng(0)

    def prompt(self, length: int) -> list[int]:
        vocab_size = self.engine.config.limits.vocab_size
        return [int(token) for token in self.rng.integers(0, vocab_size, length)]

    def submit_batch(self, *, length: int, max_tokens: int, is_mixed: bool) -> None:
        """Queue a batch; mixed, the adapters and the model take turns."""
        for row in range(NUM_ROWS):
            name = self.names[row % len(self.names)] if is_mixed else None
            self.engine.submit(
                self.prompt(length),
                SamplingParams(max_tokens=max_tokens, ignore_eos=True),
                options=RequestOptions(adapter=name),
            )

    def decode_seconds(self, *, num_steps: int, is_mixed: bool) -> float:
        """Return seconds of a decode step of the whole batch, on average."""
        self.submit_batch(length=8, max_tokens=num_steps + 2, is_mixed=is_mixed)
        num_begun = 0
        while num_begun < NUM_ROWS:
            self.engine.step()
            num_begun += len(self.engine.take_new_tokens())
        seconds = timed(self.engine.step, num_steps)
        while self.engine.has_work:
            self.engine.step()
        return seconds

    def prefill_seconds(self, *, length: int, is_mixed: bool) -> float:
        """Return seconds for the prompts of a batch, and a token of each."""
        self.submit_batch(length=length, max_tokens=1, is_mixed=is_mixed)
        started = time.perf_counter()
        while self.engine.has_work:
            self.engine.step()
        return time.perf_counter() - started

    def ttft(self, cached: list[int], adapter: str | None) -> float:
        """Return seconds to the first token of a cached prompt with a new end."""
        [output] = self.engine.generate(
            [[*cached, *self.prompt(16)]],
            SamplingParams(max_tokens=1, ignore_eos=True),
            options=RequestOptions(adapter=adapter),
        )
        ttft_s = output.timing.ttft_s
        if ttft_s is None or output.usage.cached_tokens < len(cached) - 1:
            raise SystemExit("the prompt was not cached, so there is nothing to compare")
        return ttft_s


def measure(model: str | None, num_rounds: int, prefix_tokens: int) -> dict[str, object]:
    """Return all figures."""
    assembly = assemble(model, ModelSettings(cache_blocks=1024))
    engine = Engine(assembly.parts, assembly.config)
    names: list[str | None] = [None]
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        for number in range(NUM_ADAPTERS):
            path = write_adapter(assembly, Path(scratch) / str(number), number)
            engine.adapters.load(f"a{number}", path)
            names.append(f"a{number}")
        load_s = (time.perf_counter() - started) / NUM_ADAPTERS
    bench = Bench(engine, names)
    cached = bench.prompt(prefix_tokens)
    for name in (None, "a0"):
        engine.warm([cached], options=RequestOptions(adapter=name))

    return {
        "threads": torch.get_num_threads(),
        "rank": RANK,
        "adapters": NUM_ADAPTERS,
        "rows": NUM_ROWS,
        "cached_tokens": prefix_tokens,
        "rounds": num_rounds,
        "load_ms": 1000 * load_s,
        "decode_step": median_ratio(
            lambda: bench.decode_seconds(num_steps=8, is_mixed=True),
            lambda: bench.decode_seconds(num_steps=8, is_mixed=False),
            num_rounds,
        ),
        "prefill": median_ratio(
            lambda: bench.prefill_seconds(length=32, is_mixed=True),
            lambda: bench.prefill_seconds(length=32, is_mixed=False),
            num_rounds,
        ),
        "warm_ttft": median_ratio(
            lambda: bench.ttft(cached, "a0"),
            lambda: bench.ttft(cached, None),
            2 * num_rounds,
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a directory; the demo model if left out")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--prefix", type=int, default=1024, help="cached tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measure(options.model, options.rounds, options.prefix)
    if options.json:
        print(json.dumps(figures))
        return 0
    for name, value in figures.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{key} {number:.3f}" for key, number in value.items())
            print(f"{name}: {shown}")
        else:
            print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
