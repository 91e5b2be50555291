"""Steps: how near first tokens, decode steps and a crowd of requests come to their floors.

Through the engine, everything within one run, in turns; ratios are medians of the rounds'
own. A floor is what the linear layers alone would take, reading their weights once or
computing at the rate of torch's matrix product (see ``floors``).

- *Hit*: time to first token of 1,024 cached and 32 new tokens, as a multiple of the floor
  of 32 rows.
- *Cold*: the same without the cache, as a multiple of transformers' own SDPA forward.
- *Decode*: time per token of one sequence, as a share of that with torch's layers, whose
  rows are padded.
- *Crowd*: 64 requests of 1,024 shared and 32 own tokens with replies of 32, 16 at a time,
  as a multiple of the summed floors of the steps that were really taken.

``strict_multiple`` takes the head's arithmetic for those rows only whose logits are wanted.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from floors import Floors, Rates
from prefold.blocks.table import BlockCopy
from prefold.engine.assembly import Silence, assemble
from prefold.engine.batch import Runner, StepPlan
from prefold.engine.config import EngineConfig, SchedulerConfig
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.engine import Engine
from prefold.engine.model_runner import ModelRunner
from prefold.engine.model_settings import ModelSettings
from prefold.engine.request import SamplingParams
from timing import linear_layers, print_report, ratio_of

#: What must hold; printed beside the figures.
_HIT_BOUND = 1.8
_COLD_BOUND = 1.1
_DECODE_BOUND = 0.6
_CROWD_BOUND = 1.8

Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]


class StepLog:
    """A runner that keeps how many rows its steps had, and how many logits."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.steps: list[tuple[int, int]] = []

    def execute(self, plan: StepPlan) -> torch.Tensor:
        rows = sum(piece.num_tokens for piece in plan.slices)
        self.steps.append((rows, sum(piece.num_logits for piece in plan.slices)))
        return self._inner.execute(plan)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._inner.copy_blocks(copies)


class Side:
    """An engine over the model with one implementation of linear layers."""

    def __init__(self, source: str, linear: str, args: argparse.Namespace) -> None:
        with linear_layers(linear):
            assembly = assemble(source, ModelSettings(cache_blocks=args.blocks))
        self.model = assembly.loaded.model
        self.vocab_size = assembly.loaded.vocab_size
        self.linear = assembly.numerics.linear
        runner = assembly.parts.runner
        if isinstance(runner, ModelRunner):
            # A server that has run for a while has all memory of its pool in hand.
            runner.store.numbers.zero_()
        self.log = StepLog(runner)
        config = EngineConfig(
            limits=assembly.config.limits,
            scheduler=SchedulerConfig(max_running=args.in_flight),
        )
        self.engine = Engine(dataclasses.replace(assembly.parts, runner=self.log), config)

    def first_token_s(self, prompt: Tokens, cached: range) -> float:
        """Return the time to first token; as many tokens are cached as ``cached`` says."""
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        [output] = self.engine.generate([prompt], params)
        if output.usage.cached_tokens not in cached or output.timing.ttft_s is None:
            raise SystemExit(f"a run hit {output.usage.cached_tokens} tokens, or failed")
        return output.timing.ttft_s

    def token_s(self, prompt: Tokens, reply: int) -> float:
        """Return the time per token after the first of one sequence."""
        params = SamplingParams(max_tokens=reply, ignore_eos=True)
        [output] = self.engine.generate([prompt], params)
        if output.timing.tpot_s is None:
            raise SystemExit(f"a run made no second token: {output.error}")
        return output.timing.tpot_s

    def crowd_s(self, prompts: Sequence[Tokens], reply: int) -> float:
        """Return the time that all prompts take together."""
        params = SamplingParams(max_tokens=reply, ignore_eos=True)
        began_at = time.perf_counter()
        outputs = self.engine.generate(list(prompts), params)
        took_s = time.perf_counter() - began_at
        if any(len(output.token_ids) != reply for output in outputs):
            raise SystemExit("a request of the crowd failed")
        return took_s


class Prompts:
    """Random prompts, which no cache has seen."""

    def __init__(self, vocab_size: int) -> None:
        self._generator = np.random.default_rng(0)
        self._vocab_size = vocab_size

    def fresh(self, length: int) -> Tokens:
        return self._generator.integers(0, self._vocab_size, length)

    def after(self, shared: Tokens, length: int) -> Tokens:
        return np.concatenate([shared, self.fresh(length)])


def main() -> int:
    args = _arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if args.threads:
        torch.set_num_threads(args.threads)
    source = args.model or str(ensure_demo_model(Silence()))
    report = _measure(source, args)
    print_report(report, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the engine's steps with floors.")
    parser.add_argument("--model", help="a directory; the demo model by default")
    parser.add_argument("--shared", type=int, default=1024, help="tokens in common")
    parser.add_argument("--own", type=int, default=32, help="further tokens of a prompt")
    parser.add_argument("--reply", type=int, default=32, help="tokens of a reply")
    parser.add_argument("--requests", type=int, default=64, help="of the crowd")
    parser.add_argument("--in-flight", type=int, default=16, help="of them at a time")
    parser.add_argument("--blocks", type=int, default=2048, help="of a cache")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--crowds", type=int, default=3, help="rounds of the crowd")
    parser.add_argument("--threads", type=int, help="of torch; as many as cores by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _measure(source: str, args: argparse.Namespace) -> dict[str, object]:
    packed, padded = Side(source, "cpu", args), Side(source, "torch", args)
    plain = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="sdpa"
    )
    floors, prompts = Floors(plain), Prompts(packed.vocab_size)
    shared = prompts.fresh(args.shared)
    for side in (packed, padded):
        side.engine.warm([shared])
    report: dict[str, object] = {
        "linear": packed.linear,
        "padded_linear": padded.linear,
        "threads": torch.get_num_threads(),
        "rounds": args.rounds,
    }
    report.update(_first_tokens(packed, plain, floors, prompts, shared, args))
    report["decode"] = _decode(packed, padded, prompts, args)
    report["crowd"] = _crowd(packed, floors, prompts, shared, args)
    for side in (packed, padded):
        side.engine.close()
    return report


def _first_tokens(
    packed: Side,
    plain: PreTrainedModel,
    floors: Floors,
    prompts: Prompts,
    shared: Tokens,
    args: argparse.Namespace,
) -> dict[str, object]:
    hits, colds, sdpas, rates = [], [], [], []
    length = args.shared + args.own
    for number in range(args.rounds + 1):
        new = prompts.fresh(length)
        now = floors.measure()
        hit = packed.first_token_s(
            prompts.after(shared, args.own), range(args.shared, length)
        )
        cold = packed.first_token_s(new, range(1))
        sdpa = _time_forward(plain, new)
        if number:
            hits.append(hit)
            colds.append(cold)
            sdpas.append(sdpa)
            rates.append(now)

    def multiple(head_rows: int | None) -> float:
        return ratio_of(hits, [floors.of_step(each, args.own, head_rows) for each in rates])

    return {
        "hit": {
            "ms": median(hits) * 1e3,
            "floor_ms": median(floors.of_step(each, args.own) for each in rates) * 1e3,
            "strict_multiple": multiple(1),
            **_judged("multiple", multiple(None), _HIT_BOUND),
        },
        "cold": {
            "ms": median(colds) * 1e3,
            "sdpa_ms": median(sdpas) * 1e3,
            **_judged("ratio", ratio_of(colds, sdpas), _COLD_BOUND),
        },
    }


def _decode(
    packed: Side, padded: Side, prompts: Prompts, args: argparse.Namespace
) -> dict[str, object]:
    times: dict[str, list[float]] = {"packed": [], "padded": []}
    for number in range(args.rounds + 1):
        prompt = prompts.fresh(args.own)
        for name, side in (("packed", packed), ("padded", padded)):
            took_s = side.token_s(prompt, args.reply)
            if number:
                times[name].append(took_s)
    return {
        "ms": median(times["packed"]) * 1e3,
        "padded_ms": median(times["padded"]) * 1e3,
        **_judged("ratio", ratio_of(times["packed"], times["padded"]), _DECODE_BOUND),
    }


def _crowd(
    packed: Side, floors: Floors, prompts: Prompts, shared: Tokens, args: argparse.Namespace
) -> dict[str, object]:
    times, lenient, strict, num_steps = [], [], [], 0
    for _ in range(args.crowds):
        crowd = [prompts.after(shared, args.own) for _ in range(args.requests)]
        before = floors.measure()
        packed.log.steps.clear()
        times.append(packed.crowd_s(crowd, args.reply))
        steps, after = list(packed.log.steps), floors.measure()
        now = Rates(
            read_s=(before.read_s + after.read_s) / 2,
            flop_s=(before.flop_s + after.flop_s) / 2,
        )
        num_steps = len(steps)
        lenient.append(sum(floors.of_step(now, rows) for rows, _ in steps))
        strict.append(sum(floors.of_step(now, *step) for step in steps))
    return {
        "s": median(times),
        "floor_s": median(lenient),
        "steps": num_steps,
        "requests_per_s": args.requests / median(times),
        "strict_multiple": ratio_of(times, strict),
        **_judged("multiple", ratio_of(times, lenient), _CROWD_BOUND),
    }


def _time_forward(model: PreTrainedModel, prompt: Tokens) -> float:
    ids = torch.from_numpy(prompt)[None]
    # A module's attributes are tensors or modules, mypy believes.
    forward: Callable[..., object] = model
    began_at = time.perf_counter()
    with torch.inference_mode():
        forward(input_ids=ids, use_cache=False, logits_to_keep=1)
    return time.perf_counter() - began_at


def _judged(name: str, figure: float, bound: float) -> dict[str, object]:
    return {name: figure, "bound": bound, "holds": figure <= bound}


if __name__ == "__main__":
    raise SystemExit(main())
