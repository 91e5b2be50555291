"""Throughput: requests a second with a shared prefix, against transformers' own batching.

64 requests of 1,024 shared and 32 own tokens and replies of 32, 16 at a time, after one
request that begins with the prefix. Both sides get the same token ids, compute greedily in
float32 on the same threads, and keep the prefix: the peer is ``generate_batch`` with block
sharing, at its best of page size {16, 256} x max_batch_tokens {256, 1,024, default}. They
take turns within one run; figures are medians.

``floor_rps`` is what the linear layers' arithmetic alone would allow, at the rate of
torch's matrix product in the same run.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.requests import GenerationOutput

from prefold.engine.assembly import Silence, assemble
from prefold.engine.config import EngineConfig, SchedulerConfig
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.engine import Engine
from prefold.engine.model_settings import ModelSettings
from prefold.engine.request import SamplingParams
from timing import print_report

#: What the project promises over the peer at its best.
BOUND = 2.0

Tokens = list[list[int]]


class Peer:
    """transformers' continuous batching with one configuration; keeps its cache."""

    def __init__(
        self, source: str, args: argparse.Namespace, page_size: int, max_tokens: int | None
    ) -> None:
        self.name = f"page {page_size}, {max_tokens or 'default'} tokens"
        # A model of its own: the manager, and so the cache, hangs on it.
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="sdpa"
        )
        total = args.in_flight * 2 * (args.shared + args.own + args.reply + page_size)
        self._config = ContinuousBatchingConfig(
            page_size=page_size,
            num_blocks=-(-total // page_size),
            max_batch_tokens=max_tokens,
            max_requests_per_batch=args.in_flight,
            allow_block_sharing=True,
            use_cuda_graph=False,
        )
        # transformers leaves this call without annotations.
        self._generation = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=args.reply, do_sample=False, eos_token_id=-1, pad_token_id=0
        )

    def run(self, prompts: Tokens) -> Tokens:
        # A module's attributes are tensors or modules, mypy believes.
        generate: Callable[..., dict[str, GenerationOutput]]
        generate = self._model.generate_batch  # type: ignore[assignment]
        outputs = generate(
            prompts,
            generation_config=self._generation,
            continuous_batching_config=self._config,
            persistent_manager=True,
            warmup=False,
        )
        # Named in the order of the prompts, "req_0" and on.
        found = sorted(outputs.values(), key=lambda out: int(out.request_id.split("_")[-1]))
        return [list(out.generated_tokens) for out in found]

    def close(self) -> None:
        # As for ``generate_batch`` above.
        destroy: Callable[[], None]
        destroy = self._model.destroy_cached_continuous_batching_manager  # type: ignore[assignment]
        destroy()


class Ours:
    """Prefold's engine over the same model."""

    def __init__(self, source: str, args: argparse.Namespace) -> None:
        assembly = assemble(source, ModelSettings(cache_blocks=args.blocks))
        config = EngineConfig(
            limits=assembly.config.limits,
            scheduler=SchedulerConfig(max_running=args.in_flight),
        )
        self.parameters = assembly.loaded.model.num_parameters()
        self.attention = assembly.numerics.attention
        self._engine = Engine(assembly.parts, config)
        self._params = SamplingParams(max_tokens=args.reply, ignore_eos=True)

    def run(self, prompts: Tokens) -> Tokens:
        outputs = self._engine.generate([np.array(ids) for ids in prompts], self._params)
        return [list(out.token_ids) for out in outputs]

    def close(self) -> None:
        self._engine.close()


def main() -> int:
    args = _arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for name in ("transformers", "ContinuousBatchingLogger"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if args.threads:
        torch.set_num_threads(args.threads)
    source = args.model or str(ensure_demo_model(Silence()))
    generator = np.random.default_rng(0)
    high = AutoModelForCausalLM.from_pretrained(source).config.vocab_size
    shared = generator.integers(0, high, args.shared).tolist()

    def fresh(count: int) -> Tokens:
        return [
            shared + generator.integers(0, high, args.own).tolist() for _ in range(count)
        ]

    ours = Ours(source, args)
    best = _best_peer(source, args, fresh)
    peer = Peer(source, args, *best)
    for side in (ours, peer):
        side.run(fresh(1))
    rounds, num_equal = [], 0
    for _ in range(args.rounds):
        prompts = fresh(args.requests)
        ours_s, our_tokens = _timed(ours, prompts)
        peer_s, peer_tokens = _timed(peer, prompts)
        rounds.append((ours_s, peer_s, _time_floor(ours.parameters, args)))
        num_equal += sum(a == b for a, b in zip(our_tokens, peer_tokens, strict=True))
    ratio = median(theirs / mine for mine, theirs, _ in rounds)
    report = {
        "prefold_rps": args.requests / median(mine for mine, _, _ in rounds),
        "peer_rps": args.requests / median(theirs for _, theirs, _ in rounds),
        "ratio": ratio,
        "floor_rps": args.requests / median(floor for _, _, floor in rounds),
        "peer": peer.name,
        "attention": ours.attention,
        "threads": torch.get_num_threads(),
        "rounds": args.rounds,
        "equal_replies": num_equal / (args.requests * args.rounds),
        "bound": BOUND,
        "holds": ratio >= BOUND,
    }
    ours.close()
    peer.close()
    print_report(report, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare throughput with the peer's.")
    parser.add_argument("--model", help="directory or hub id; the demo model by default")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--shared", type=int, default=1024, help="tokens in common")
    parser.add_argument("--own", type=int, default=32, help="further tokens of a prompt")
    parser.add_argument("--reply", type=int, default=32, help="tokens of a reply")
    parser.add_argument("--blocks", type=int, default=2048, help="of our cache")
    parser.add_argument("--pages", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024, 0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _timed(side: Ours | Peer, prompts: Tokens) -> tuple[float, Tokens]:
    began_at = time.perf_counter()
    replies = side.run(prompts)
    return time.perf_counter() - began_at, replies


def _best_peer(
    source: str, args: argparse.Namespace, fresh: Callable[[int], Tokens]
) -> tuple[int, int | None]:
    """Return the peer's page size and batch tokens that answer a quarter soonest."""
    choices = [(page, tokens or None) for page in args.pages for tokens in args.batches]
    if len(choices) == 1:
        return choices[0]
    times = {}
    for page, tokens in choices:
        peer = Peer(source, args, page, tokens)
        peer.run(fresh(1))
        times[page, tokens], _ = _timed(peer, fresh(max(args.requests // 4, 1)))
        peer.close()
        print(f"{peer.name}: {times[page, tokens]:.1f} s", file=sys.stderr)
    return min(times, key=lambda choice: times[choice])


def _time_floor(num_parameters: int, args: argparse.Namespace) -> float:
    """Return seconds of the linear layers' arithmetic at a matrix product's rate."""
    left, right = torch.randn(2, 1024, 1024)
    times = []
    for _ in range(9):
        began_at = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - began_at)
    num_tokens: int = args.requests * (args.own + args.reply)
    return num_tokens * num_parameters / len(left) ** 3 * median(times)


if __name__ == "__main__":
    raise SystemExit(main())
