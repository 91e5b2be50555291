"""The work of ``prefold bench throughput``: decode steps, and where their time goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
import torch
from torch import nn

from prefold.cli.bench_options import ThroughputOptions
from prefold.cli.console import Screen
from prefold.cli.options import ModelOptions
from prefold.engine.assembly import Assembly, assemble
from prefold.engine.engine import Engine
from prefold.engine.linear_kind import is_linear
from prefold.engine.model_settings import ModelSettings
from prefold.engine.request import SamplingParams
from prefold.engine.sampler import SampledRow, Sampler, SamplerState

#: Decode steps before the first that counts: the prompts and what they leave behind.
_WARM_STEPS = 4


@dataclass(slots=True)
class _Clock:
    """Seconds spent in each part of the step that runs."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, part: str, began_at: float) -> None:
        spent = time.perf_counter() - began_at
        self.seconds[part] = self.seconds.get(part, 0.0) + spent

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken


class _TimedSampler(Sampler):
    """A sampler that tells the clock how long it takes."""

    def __init__(self, vocab_size: int, clock: _Clock) -> None:
        super().__init__(vocab_size)
        self._clock = clock

    def sample_batch(
        self, logits: torch.Tensor, states: Sequence[SamplerState]
    ) -> list[SampledRow]:
        began_at = time.perf_counter()
        rows = super().sample_batch(logits, states)
        self._clock.add("sampling", began_at)
        return rows


def run_throughput(options: ThroughputOptions) -> int:
    """Decode with one sequence and with many, and print what a step takes."""
    with Screen(as_json=options.as_json) as screen:
        assembly = assemble(options.model.model, _settings(options.model), screen)
        screen.end()
        numerics = assembly.numerics
        screen.say(f"Attention: {numerics.attention}, {numerics.num_threads} threads.")
        results = [
            _measure(assembly, count, options)
            for count in dict.fromkeys((1, options.sequences))
        ]
        if screen.as_json:
            screen.print_json({"numerics": numerics.describe(), "steps": results})
            return 0
        for result in results:
            for line in _lines(result):
                screen.print_line(line)
    return 0


def _settings(options: ModelOptions) -> ModelSettings:
    return ModelSettings(
        cache_memory=options.cache_memory,
        cache_blocks=options.cache_blocks,
        block_size=options.block_size,
        dtype=options.dtype or "float32",
        num_threads=options.threads,
    )


def _measure(
    assembly: Assembly, num_sequences: int, options: ThroughputOptions
) -> dict[str, object]:
    """Return what decode steps of so many sequences take; seconds are medians."""
    clock = _Clock()
    model: nn.Module = assembly.loaded.model
    with _timed(model, "forward", clock):
        steps = _decode(assembly, num_sequences, options, clock)
    step_s = median(step["step"] for step in steps)
    overhead = median(1 - step["forward"] / step["step"] for step in steps)
    result: dict[str, object] = {
        "sequences": num_sequences,
        "step_s": step_s,
        "tokens_per_s": num_sequences / step_s,
        "overhead_share": overhead,
    }
    if options.has_profile:
        result["shares"] = _profile(assembly, num_sequences, options)
    return result


def _profile(
    assembly: Assembly, num_sequences: int, options: ThroughputOptions
) -> dict[str, float]:
    """Return shares of a step. Apart from the plain run: so many clocks cost time too."""
    clock = _Clock()
    model: nn.Module = assembly.loaded.model
    # transformers leaves this call without annotations.
    head = assembly.loaded.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    names = {id(model): "forward", id(head): "head"}
    for module in model.modules():
        if (
            vars(module).get("layer_idx") is not None
            and "Attention" in type(module).__name__
        ):
            names[id(module)] = "attention with its linear layers"
            names.update((id(each), "linear in attention") for each in module.children())
        elif is_linear(module):
            names.setdefault(id(module), "other linear layers")
    with _all_timed(model, names, clock):
        steps = _decode(assembly, num_sequences, options, clock)

    def share(part: str) -> float:
        return median(step.get(part, 0.0) / step["step"] for step in steps)

    linear = share("linear in attention")
    attention = share("attention with its linear layers") - linear
    linear += share("other linear layers")
    forward, head_share, sampling = share("forward"), share("head"), share("sampling")
    return {
        "attention": attention,
        "linear layers": linear,
        "head": head_share,
        "rest of the forward pass": forward - attention - linear - head_share,
        "sampling": sampling,
        "rest of the engine": 1 - forward - sampling,
    }


@contextmanager
def _timed(module: nn.Module, part: str, clock: _Clock) -> Iterator[None]:
    """Add the time of a module's calls to a part."""
    began_at = 0.0

    def begin(_module: nn.Module, _inputs: object) -> None:
        nonlocal began_at
        began_at = time.perf_counter()

    def end(_module: nn.Module, _inputs: object, _output: object) -> None:
        clock.add(part, began_at)

    handles = (module.register_forward_pre_hook(begin), module.register_forward_hook(end))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _all_timed(model: nn.Module, names: dict[int, str], clock: _Clock) -> Iterator[None]:
    timers = [
        _timed(module, names[id(module)], clock)
        for module in model.modules()
        if id(module) in names
    ]
    for timer in timers:
        timer.__enter__()
    try:
        yield
    finally:
        for timer in timers:
            timer.__exit__(None, None, None)


def _decode(
    assembly: Assembly, num_sequences: int, options: ThroughputOptions, clock: _Clock
) -> list[dict[str, float]]:
    """Return the times of the steps in which every sequence advances by one token."""
    vocab_size = assembly.loaded.vocab_size
    parts = replace(assembly.parts, sampler=_TimedSampler(vocab_size, clock))
    engine = Engine(parts, assembly.config)
    generator = np.random.default_rng(0)
    params = SamplingParams(
        max_tokens=options.steps + num_sequences + _WARM_STEPS, ignore_eos=True
    )
    for _ in range(num_sequences):
        engine.submit(generator.integers(0, vocab_size, options.prompt_tokens), params)
    steps, num_full = [], 0
    while num_full < options.steps + _WARM_STEPS:
        clock.take()
        began_at = time.perf_counter()
        engine.step()
        step_s = time.perf_counter() - began_at
        if len(engine.take_new_tokens()) == num_sequences:
            num_full += 1
            steps.append({**clock.take(), "step": step_s})
    engine.close()
    return steps[_WARM_STEPS:]


def _lines(result: dict[str, object]) -> list[str]:
    step_ms, rate = _number(result["step_s"]) * 1e3, _number(result["tokens_per_s"])
    lines = [
        f"{result['sequences']} sequences: {step_ms:.1f} ms a step, {rate:.1f} tokens/s",
        f"  {_number(result['overhead_share']):.1%} is outside the model's forward pass",
    ]
    shares = result.get("shares")
    if isinstance(shares, dict):
        lines += [f"  {name:26}{share:7.1%}" for name, share in shares.items()]
    return lines


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0
