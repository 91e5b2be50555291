"""Precision: what narrower numbers cost in likelihood, and save in memory.

- *Perplexity* of a fixed text, this project's own documents, in windows of 1,024 tokens,
  for precisions of the model and of its KV; as a change from float32 throughout.
- *Memory*: bytes of a token's KV, scales included, and how many times the tokens of
  float32 fit into the same bytes, by blocks that were really made.
- *Identical*: whether the last window has the same bits warm as cold.
- *Decode*: the time of the compiled attention over KV of each kind, one sequence of 8,192
  tokens in the demo model's shapes, as a share of float32's. They take turns within one
  run; ratios are medians of the rounds' own.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from attention import Load
from prefold.blocks.table import TokenIds
from prefold.cache import NO_CACHE
from prefold.engine.assembly import Assembly, assemble
from prefold.engine.config import RequestOptions
from prefold.engine.engine import Engine
from prefold.engine.kv_store import KvStore
from prefold.engine.model_settings import ModelSettings
from prefold.engine.native import HAS_KERNELS
from prefold.engine.request import RequestOutput, SamplingParams

_DOCUMENTS = ("operations.md", "security.md", "http-api.md", "eviction.md", "linear.md")

#: Precisions of the model and of its KV; the first is what the others are held against.
_PRECISIONS = (
    ("float32", "float32"),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("float32", "int8"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "int8"),
    ("float16", "float16"),
    ("float16", "int8"),
)

#: Bytes that the tokens of every kind are counted in.
_ROOM = 64 << 20

_KV_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one precision; changes are from the first one's."""

    dtype: str
    kv_dtype: str
    tokens: int
    perplexity: float
    perplexity_change: float
    bytes_a_token: float
    tokens_ratio: float
    identical: bool
    is_exact: bool


def main() -> int:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows: list[Row] = []
    for dtype, kv_dtype in _PRECISIONS:
        rows.append(_measure(args, dtype, kv_dtype, rows[0] if rows else None))
        if not args.json:
            print(_describe(rows[-1]), flush=True)
    report: dict[str, object] = {"precisions": [asdict(row) for row in rows]}
    if HAS_KERNELS:
        report["decode_share_of_float32"] = _decode(args)
    if args.json:
        print(json.dumps(report))
    elif HAS_KERNELS:
        print(report["decode_share_of_float32"])
    return 0


def _measure(args: argparse.Namespace, dtype: str, kv_dtype: str, plain: Row | None) -> Row:
    assembly = assemble(
        args.model,
        ModelSettings(
            dtype=dtype,
            kv_dtype=kv_dtype,
            cache_blocks=2 * args.window // 16 + 2,
            max_model_len=args.window + 16,
        ),
    )
    windows = _windows(assembly, args)
    engine = Engine(assembly.parts, assembly.config)
    logprobs: list[float] = []
    for window in windows:
        # Cold: what is measured is the precision, not what was cached before.
        output = _run(engine, window, RequestOptions(access=NO_CACHE))
        found = output.prompt_logprobs or ()
        logprobs += [token.logprob for token in found if token is not None]
    perplexity = math.exp(-sum(logprobs) / len(logprobs))
    capacity = _bytes_a_token(assembly)
    return Row(
        dtype=dtype,
        kv_dtype=kv_dtype,
        tokens=len(logprobs),
        perplexity=perplexity,
        perplexity_change=perplexity / plain.perplexity - 1 if plain else 0.0,
        bytes_a_token=capacity,
        tokens_ratio=plain.bytes_a_token / capacity if plain else 1.0,
        identical=_is_identical(engine, windows[-1]),
        is_exact=assembly.exactness.is_exact,
    )


def _bytes_a_token(assembly: Assembly) -> float:
    """Return the bytes of a pool that was made, without the block for padding, a token."""
    layout = assembly.layout
    num_blocks = _ROOM // layout.block_bytes
    store = KvStore(layout, num_blocks, dtype=assembly.kv_dtype, device=torch.device("cpu"))
    num_bytes = store.numbers.numel() * store.numbers.element_size()
    return num_bytes / ((num_blocks + 1) * layout.block_size)


def _is_identical(engine: Engine, window: TokenIds) -> bool:
    """Run a window cold and warm; tell whether the logits behind it have the same bits."""
    cold = _run(engine, window, RequestOptions(access=NO_CACHE), scored=False)
    _run(engine, window[: len(window) // 2], RequestOptions(), scored=False)
    warm = _run(engine, window, RequestOptions(), scored=False)
    if warm.usage.cached_tokens < len(window) // 2 - 16:
        raise SystemExit("the second half of a window found nothing of the first")
    if cold.logits is None or warm.logits is None:
        raise SystemExit("a run ended without its logits")
    return torch.equal(cold.logits.view(torch.int32), warm.logits.view(torch.int32))


def _run(
    engine: Engine, window: TokenIds, options: RequestOptions, *, scored: bool = True
) -> RequestOutput:
    params = SamplingParams(
        max_tokens=1,
        ignore_eos=True,
        prompt_logprobs=0 if scored else None,
        return_logits=not scored,
    )
    [output] = engine.generate([window], params, options=options)
    return output


def _windows(assembly: Assembly, args: argparse.Namespace) -> list[TokenIds]:
    directory = Path(__file__).parents[1] / "docs"
    text = "\n".join((directory / name).read_text() for name in _DOCUMENTS)
    encoded = assembly.loaded.tokenizer(text, return_tensors="np")["input_ids"]
    tokens = encoded[0].astype("int64")
    count = min(args.windows, len(tokens) // args.window)
    return [tokens[i * args.window :][: args.window] for i in range(count)]


def _decode(args: argparse.Namespace) -> dict[str, float]:
    length = 8192 // args.shrink
    plain = Load([length], num_layers=30)
    shares = {}
    with torch.inference_mode():
        for name, kv_dtype in _KV_DTYPES.items():
            narrow = Load([length], num_layers=30, kv_dtype=kv_dtype)
            rounds = []
            for _ in range(args.rounds + 1):
                seconds = [_time(load) for load in (plain, narrow)]
                rounds.append(seconds[1] / seconds[0])
            shares[name] = median(rounds[1:])
    return shares


def _time(load: Load) -> float:
    started_at = time.perf_counter()
    load.attend()
    return time.perf_counter() - started_at


def _describe(row: Row) -> str:
    return (
        f"{row.dtype} with KV in {row.kv_dtype}: perplexity {row.perplexity:.4f} "
        f"({row.perplexity_change:+.3%}) over {row.tokens} tokens, "
        f"{row.bytes_a_token:,.0f} bytes a token ({row.tokens_ratio:.2f} times as many), "
        f"{'identical' if row.identical else 'NOT identical'} warm and cold"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what narrower numbers cost.")
    parser.add_argument("--model", help="a directory or hub id; the demo model otherwise")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--window", type=int, default=1024, help="tokens of each")
    parser.add_argument("--rounds", type=int, default=9, help="of decoding")
    parser.add_argument("--shrink", type=int, default=1, help="decode so much less")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
