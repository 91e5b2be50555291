"""Time to first token: cold and after a hit, against transformers' own forward.

One run, the three alternating, medians:

- ``sdpa``: transformers' forward pass of a whole prompt with its SDPA attention and the
  logits of the last token, no cache object;
- ``cold``: the first token of a prompt never seen before, through the engine;
- ``hit``: the first token of a prompt whose first 1,024 tokens are cached.

Each time is divided by the ``sdpa`` time of its own round, so a machine that slows down
between rounds does not move the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from prefold.engine.assembly import Silence, assemble
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.engine.request import SamplingParams

#: What the project promises, as shares of the SDPA forward.
COLD_BOUND = 1.3
HIT_BOUND = 0.12

_ONE = SamplingParams(max_tokens=1, ignore_eos=True)


def main() -> int:
    args = _arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    source = args.model or str(ensure_demo_model(Silence()))
    settings = ModelSettings(
        cache_blocks=4096, num_threads=args.threads, device=args.device
    )
    assembly = assemble(source, settings)
    engine = Engine(assembly.parts, assembly.config)
    plain = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float32, attn_implementation="sdpa"
    )
    plain.to(args.device)
    generator = np.random.default_rng(args.seed)
    vocab = assembly.loaded.vocab_size

    def fresh(length: int) -> np.ndarray:
        return generator.integers(0, vocab, length)

    shared = fresh(args.shared)
    engine.warm([shared])
    rounds = []
    for number in range(args.rounds + 1):
        prompt = fresh(args.shared + args.suffix)
        continued = np.concatenate([shared, fresh(args.suffix)])
        sdpa = _time_forward(plain, prompt)
        cold = _ttft(engine, prompt, at_most=0)
        hit = _ttft(engine, continued, at_least=args.shared)
        # The first round warms the allocator and the thread pool up.
        if number:
            rounds.append((sdpa, cold, hit))
    engine.close()
    report = {
        "shared_tokens": args.shared,
        "suffix_tokens": args.suffix,
        "rounds": args.rounds,
        "threads": torch.get_num_threads(),
        "device": args.device,
        "sdpa_s": median(sdpa for sdpa, _, _ in rounds),
        "cold_s": median(cold for _, cold, _ in rounds),
        "hit_s": median(hit for _, _, hit in rounds),
        "cold_ratio": median(cold / sdpa for sdpa, cold, _ in rounds),
        "hit_ratio": median(hit / sdpa for sdpa, _, hit in rounds),
        "cold_bound": COLD_BOUND,
        "hit_bound": HIT_BOUND,
    }
    report["holds"] = (
        report["cold_ratio"] <= COLD_BOUND and report["hit_ratio"] <= HIT_BOUND
    )
    _show(report, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the first token.")
    parser.add_argument("--model", help="directory or hub id; the demo model by default")
    parser.add_argument("--shared", type=int, default=1024, help="cached tokens of a hit")
    parser.add_argument("--suffix", type=int, default=32, help="new tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _time_forward(model: PreTrainedModel, prompt: np.ndarray) -> float:
    ids = torch.from_numpy(prompt)[None].to(model.device)
    started_at = time.perf_counter()
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
    int(logits[0, -1].argmax())
    return time.perf_counter() - started_at


def _ttft(
    engine: Engine, prompt: np.ndarray, *, at_least: int = 0, at_most: int | None = None
) -> float:
    [output] = engine.generate([prompt], _ONE)
    hit = output.usage.cached_tokens
    if hit < at_least or (at_most is not None and hit > at_most):
        raise SystemExit(f"a run hit {hit} tokens: what was timed is not what it is called")
    if output.timing.ttft_s is None:
        raise SystemExit(f"a run made no token: {output.error}")
    return output.timing.ttft_s


def _show(report: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        shown = f"{value:.4f}" if isinstance(value, float) else value
        print(f"{name:>14}  {shown}")


if __name__ == "__main__":
    sys.exit(main())
