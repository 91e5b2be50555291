"""Linear layers: how near a forward pass comes to reading its weights once.

The whole forward pass of the demo model, or another, with an attention that does nothing:
embedding, norms, linear layers, activations and head, for some rows at once. What is
compared takes turns within one run; ratios are medians of the rounds' own.

- *Few rows* (1, 16, 32): time as a multiple of the larger of two floors, the weights' bytes
  at the rate of torch's sum and arithmetic at the rate of torch's matrix product; and as a
  share of the time with torch's layers, whose rows are padded to 16.
- *Many rows* (1,024): arithmetic a second, as a share of that with torch's layers.
- *Error*: of logits of 256 rows against float64, as a multiple of torch's.
- *Narrow weights*: time of one row of the model in bfloat16 as a share of float32, and
  what that does to perplexity, of Prefold's own documentation, with the real attention.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from prefold.engine.assembly import Silence
from prefold.engine.attention import ATTENTION_NAME, AttentionCall
from prefold.engine.batch import SequenceSlice
from prefold.engine.demo_model import ensure_demo_model
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.numerics import read_numerics
from prefold.engine.step_attention import attention_over
from timing import linear_layers, print_report, ratio_of, time_in_turns

#: What must hold; printed beside the figures.
_FLOOR_BOUNDS = {1: 1.5, 16: 1.6, 32: 1.6}
_RATE_BOUND = 0.85
_ERROR_BOUND = 1.0
_NARROW_BOUND = 0.65

_MANY_ROWS = 1024
_PADDING = 16
_PROMPT = 1024
_BLOCK = 16
_DOCS = Path(__file__).parent.parent / "docs"


class NoAttention:
    """An attention site that gives every query back as its result."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return call.query.transpose(1, 2)

    def check_usable(self) -> None:
        pass


def main() -> int:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    source = args.model or str(ensure_demo_model(Silence()))
    with torch.inference_mode():
        report = _measure(source, args)
    print_report(report, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare a forward pass with its floors.")
    parser.add_argument("--model", help="a directory; the demo model by default")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of torch; as many as cores by default")
    parser.add_argument(
        "--prompts", type=int, default=4, help="of 1,024 tokens, for perplexity"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _measure(source: str, args: argparse.Namespace) -> dict[str, object]:
    packed = _load(source, torch.float32, "cpu")
    padded = _load(source, torch.float32, "torch")
    narrow = _load(source, torch.bfloat16, "cpu")
    report: dict[str, object] = {
        "linear": read_numerics(packed, row_multiple=1).linear,
        "threads": torch.get_num_threads(),
        "rounds": args.rounds,
    }
    for rows in _FLOOR_BOUNDS:
        report[f"{rows}_rows"] = _few_rows(packed, padded, rows, args.rounds)
    report["many_rows"] = _many_rows(packed, padded, max(args.rounds // 3, 1))
    report["error"] = _error(source, packed, padded)
    report["narrow"] = _narrow(packed, narrow, args)
    return report


def _load(source: str, dtype: torch.dtype, linear: str) -> LoadedModel:
    with linear_layers(linear):
        return load_model(source, LoadOptions(dtype=dtype))


def _forward(model: PreTrainedModel, rows: int) -> torch.Tensor:
    """Return the logits of all rows, of which each is a token at position 0."""
    tokens = torch.arange(rows)[None] % model.config.vocab_size
    output = model(
        input_ids=tokens,
        position_ids=torch.zeros_like(tokens),
        use_cache=False,
        logits_to_keep=torch.arange(rows),
        attention_site=NoAttention(),
    )
    logits: torch.Tensor = output.logits[0]
    return logits


def _num_weights(loaded: LoadedModel) -> int:
    """Return how many numbers a token is multiplied by."""
    return sum(p.numel() for p in loaded.model.parameters() if p.ndim > 1)


def _few_rows(
    packed: LoadedModel, padded: LoadedModel, rows: int, rounds: int
) -> dict[str, object]:
    numbers = torch.ones(_num_weights(packed))
    left, right = torch.randn(2, 1536, 1536)
    times = time_in_turns(
        {
            "packed": lambda: _forward(packed.model, rows),
            "read": numbers.sum,
            "product": lambda: torch.mm(left, right),
            "padded": lambda: _forward(padded.model, -(-rows // _PADDING) * _PADDING),
        },
        rounds,
    )
    flops = 2 * rows * _num_weights(packed)
    share = flops / (2 * len(left) ** 3)
    floors = [
        max(read, share * product)
        for read, product in zip(times["read"], times["product"], strict=True)
    ]
    multiple, bound = ratio_of(times["packed"], floors), _FLOOR_BOUNDS[rows]
    return {
        "ms": median(times["packed"]) * 1e3,
        "floor_ms": median(floors) * 1e3,
        "read_gb_per_s": numbers.nbytes / median(times["read"]) / 1e9,
        "gflops": 2 * len(left) ** 3 / median(times["product"]) / 1e9,
        "multiple": multiple,
        "share_of_padded": ratio_of(times["packed"], times["padded"]),
        "bound": bound,
        "holds": multiple <= bound,
    }


def _many_rows(packed: LoadedModel, padded: LoadedModel, rounds: int) -> dict[str, object]:
    times = time_in_turns(
        {
            "packed": lambda: _forward(packed.model, _MANY_ROWS),
            "padded": lambda: _forward(padded.model, _MANY_ROWS),
        },
        rounds,
    )
    flops = 2 * _MANY_ROWS * _num_weights(packed)
    ratio = ratio_of(times["padded"], times["packed"])
    return {
        "gflops": flops / median(times["packed"]) / 1e9,
        "torch_gflops": flops / median(times["padded"]) / 1e9,
        "ratio": ratio,
        "bound": _RATE_BOUND,
        "holds": ratio >= _RATE_BOUND,
    }


def _error(source: str, packed: LoadedModel, padded: LoadedModel) -> dict[str, object]:
    exact = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.float64, attn_implementation=ATTENTION_NAME
    )
    # A token whose error later layers blow up would decide over few.
    rows = 16 * _PADDING
    wanted = _forward(exact, rows)

    def error(loaded: LoadedModel) -> float:
        return float((_forward(loaded.model, rows) - wanted).square().mean().sqrt())

    own, torch_s = error(packed), error(padded)
    multiple = own / torch_s
    return {
        "rms": own,
        "torch_rms": torch_s,
        "multiple": multiple,
        "bound": _ERROR_BOUND,
        "holds": multiple <= _ERROR_BOUND,
    }


def _narrow(
    wide: LoadedModel, narrow: LoadedModel, args: argparse.Namespace
) -> dict[str, object]:
    times = time_in_turns(
        {
            "wide": lambda: _forward(wide.model, 1),
            "narrow": lambda: _forward(narrow.model, 1),
        },
        args.rounds,
    )
    ratio = ratio_of(times["narrow"], times["wide"])
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(_DOCS.glob("*.md")))
    tokens = np.array(wide.tokenizer(text)["input_ids"][: args.prompts * _PROMPT])
    perplexities = [_perplexity(loaded, tokens) for loaded in (wide, narrow)]
    return {
        "ms": median(times["narrow"]) * 1e3,
        "wide_ms": median(times["wide"]) * 1e3,
        "ratio": ratio,
        "bound": _NARROW_BOUND,
        "holds": ratio <= _NARROW_BOUND,
        "tokens": len(tokens),
        "perplexity": perplexities[1],
        "wide_perplexity": perplexities[0],
    }


def _perplexity(loaded: LoadedModel, tokens: np.ndarray) -> float:
    losses = []
    for first in range(0, len(tokens) - _BLOCK, _PROMPT):
        prompt = tokens[first : first + _PROMPT]
        num_blocks = -(-len(prompt) // _BLOCK)
        store = KvStore(
            loaded.layout(_BLOCK, loaded.dtype),
            num_blocks,
            dtype=loaded.dtype,
            device=loaded.device,
        )
        piece = SequenceSlice(
            token_ids=prompt,
            start=0,
            block_ids=np.arange(num_blocks, dtype=np.int32),
            num_logits=len(prompt),
        )
        ids = torch.from_numpy(prompt)[None]
        with _opened(store, loaded, piece) as site:
            output = loaded.model(
                input_ids=ids,
                position_ids=torch.arange(len(prompt))[None],
                use_cache=False,
                logits_to_keep=torch.arange(len(prompt)),
                attention_site=site,
            )
        losses.append(
            torch.nn.functional.cross_entropy(
                output.logits[0, :-1].float(), ids[0, 1:], reduction="none"
            )
        )
    return math.exp(float(torch.cat(losses).mean()))


@contextmanager
def _opened(store: KvStore, loaded: LoadedModel, piece: SequenceSlice) -> Iterator[object]:
    """Give a step's attention, and see that what it wrote are numbers."""
    site = attention_over(store, loaded.num_heads)([piece], piece.num_tokens)
    yield site
    site.check_usable()


if __name__ == "__main__":
    raise SystemExit(main())
