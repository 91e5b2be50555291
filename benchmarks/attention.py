"""Attention: how near the compiled kernel comes to what the machine can do.

Shapes are the demo model's: 9 query heads, 3 key heads of 64 numbers, blocks of 16 tokens
in any order, float32. What is compared takes turns within one run; ratios are medians of
the rounds' own.

- *Decode*, one sequence of 8,192 tokens and sixteen of 4,096, nothing shared: bytes of KV
  a second, as a share of torch's sum over the same bytes, read from first to last;
  ``in_place_ratio`` compares with a sum over each layer's share where it lies.
- *Shared decode*, sixteen sequences with 4,096 tokens in common and 64 of their own: time
  as a multiple of the larger of two floors, distinct bytes at that rate and arithmetic at
  the rate of torch's matrix product; and against the same sixteen with nothing shared.
- *Prefill*, 1,024 tokens after 4,096: arithmetic a second, of visible keys only, as a share
  of torch's products of the same shapes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.engine.attention import AttentionCall
from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.native import NATIVE, describe_attention
from prefold.engine.quantization import scale_itemsize
from prefold.engine.step_attention import attention_over, order_for
from timing import print_report, ratio_of, time_in_turns

_BLOCK_SIZE = 16
_HEADS, _KV_HEADS, _SIZE = 9, 3, 64
_SHAPE = LayerShape(num_kv_heads=_KV_HEADS, key_size=_SIZE, value_size=_SIZE)

#: What decode must reach of a plain read, and so on; printed beside the figures.
_READ_SHARE = 0.7
_FLOOR_MULTIPLE = 1.7
_SHARING_GAIN = 2.5
_PREFILL_SHARE = 0.5


class Load:
    """Sequences of random KV over several layers, and one step of them all."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        num_layers: int,
        shared: int = 0,
        new: int = 1,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        num_shared = shared // _BLOCK_SIZE
        counts = [-(-length // _BLOCK_SIZE) - num_shared for length in lengths]
        num_blocks = num_shared + sum(counts)
        self.num_layers = num_layers
        self.layout = KvLayout(
            block_size=_BLOCK_SIZE,
            layers=(_SHAPE,) * num_layers,
            itemsize=kv_dtype.itemsize,
            order=order_for(NATIVE),
            scale_itemsize=scale_itemsize(kv_dtype),
        )
        self.store = KvStore(
            self.layout, num_blocks, dtype=kv_dtype, device=torch.device("cpu")
        )
        self._fill()
        order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
        common, rest = np.split(order, [num_shared])
        self.slices = [
            SequenceSlice(
                token_ids=np.zeros(new, np.int64),
                start=length - new,
                block_ids=np.concatenate((common, own)),
                num_logits=0,
            )
            for length, own in zip(
                lengths, np.split(rest, np.cumsum(counts)[:-1]), strict=True
            )
        ]
        self.num_rows = -(-new * len(lengths) // 16) * 16
        self.open = attention_over(self.store, _HEADS)
        self.calls = [
            AttentionCall(
                layer=layer,
                query=torch.randn(1, _HEADS, self.num_rows, _SIZE),
                key=torch.randn(1, _KV_HEADS, self.num_rows, _SIZE),
                value=torch.randn(1, _KV_HEADS, self.num_rows, _SIZE),
                scaling=_SIZE**-0.5,
                window=None,
                softcap=None,
                sinks=None,
                is_causal=True,
                other_keywords=(),
            )
            for layer in range(num_layers)
        ]

    def _fill(self) -> None:
        """Make every number one between -1 and 1."""
        if not self.layout.scale_itemsize:
            self.store.numbers.uniform_(-1, 1)
            return
        self.store.numbers.random_(-127, 128)
        for layer in range(self.num_layers):
            for plane in (self.store.keys(layer), self.store.values(layer)):
                if plane.scales is not None:
                    plane.scales.fill_(1 / 127)

    @property
    def num_bytes(self) -> int:
        """Of all blocks that are read."""
        return self.store.num_blocks * self.layout.block_bytes

    @property
    def num_flops(self) -> int:
        """Of both products over the keys that rows see."""
        pairs = sum(
            piece.num_tokens * (2 * piece.start + piece.num_tokens + 1) // 2
            for piece in self.slices
        )
        return self.num_layers * pairs * _HEADS * 4 * _SIZE

    def attend(self) -> None:
        site = self.open(self.slices, self.num_rows)
        for call in self.calls:
            site.attend(call)

    def read(self) -> None:
        self.store.numbers[: self.num_bytes // 4].sum()

    def read_in_place(self) -> None:
        blocks = self.store.numbers[: self.num_bytes // 4].view(
            self.store.num_blocks, self.num_layers, -1
        )
        for layer in range(self.num_layers):
            blocks[:, layer].sum()


def main() -> int:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with torch.inference_mode():
        report = {
            "attention": describe_attention(NATIVE),
            "threads": torch.get_num_threads(),
            "rounds": args.rounds,
            "one_sequence": _decode([8192 // args.shrink], args, layers=30),
            "sixteen_sequences": _decode([4096 // args.shrink] * 16, args, layers=10),
            "shared": _shared(args, layers=10),
            "prefill": _prefill(args, layers=2),
        }
    print_report(report, as_json=args.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the kernel with the machine.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="of torch; as many as cores by default")
    parser.add_argument("--shrink", type=int, default=1, help="divide all lengths by this")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _decode(
    lengths: Sequence[int], args: argparse.Namespace, *, layers: int
) -> dict[str, object]:
    load = Load(lengths, num_layers=layers)
    times = time_in_turns(
        {"attend": load.attend, "read": load.read, "in_place": load.read_in_place},
        args.rounds,
    )
    ratio = ratio_of(times["read"], times["attend"])
    return {
        "gb_per_s": load.num_bytes / median(times["attend"]) / 1e9,
        "read_gb_per_s": load.num_bytes / median(times["read"]) / 1e9,
        "ratio": ratio,
        "in_place_ratio": ratio_of(times["in_place"], times["attend"]),
        "bound": _READ_SHARE,
        "holds": ratio >= _READ_SHARE,
    }


def _shared(args: argparse.Namespace, *, layers: int) -> dict[str, object]:
    shared, own = 4096 // args.shrink, 64
    lengths = [shared + own] * 16
    load = Load(lengths, num_layers=layers, shared=shared)
    apart = Load(lengths, num_layers=layers)
    left, right = torch.randn(2, 2048 // args.shrink, 2048 // args.shrink)
    times = time_in_turns(
        {
            "attend": load.attend,
            "apart": apart.attend,
            "read": load.read,
            "product": lambda: torch.mm(left, right),
        },
        args.rounds,
    )
    share_of_product = load.num_flops / (2 * len(left) ** 3)
    floors = [
        max(read, share_of_product * product)
        for read, product in zip(times["read"], times["product"], strict=True)
    ]
    multiple, gain = (
        ratio_of(times["attend"], floors),
        ratio_of(times["apart"], times["attend"]),
    )
    return {
        "ms": median(times["attend"]) * 1e3,
        "floor_ms": median(floors) * 1e3,
        "apart_ms": median(times["apart"]) * 1e3,
        "multiple": multiple,
        "multiple_bound": _FLOOR_MULTIPLE,
        "gain": gain,
        "gain_bound": _SHARING_GAIN,
        "holds": multiple <= _FLOOR_MULTIPLE and gain >= _SHARING_GAIN,
    }


def _prefill(args: argparse.Namespace, *, layers: int) -> dict[str, object]:
    before, new = 4096 // args.shrink, 1024 // args.shrink
    load = Load([before + new], num_layers=layers, new=new)
    query = torch.randn(_HEADS, new, _SIZE)
    keys = torch.randn(_HEADS, _SIZE, before + new)
    values = torch.randn(_HEADS, before + new, _SIZE)
    scores = torch.empty(_HEADS, new, before + new)

    def multiply() -> None:
        torch.bmm(query, keys, out=scores)
        torch.bmm(scores, values)

    times = time_in_turns({"attend": load.attend, "product": multiply}, args.rounds)
    product_flops = 4 * _HEADS * new * (before + new) * _SIZE
    ratio = ratio_of(times["product"], times["attend"]) * load.num_flops / product_flops
    return {
        "gflops": load.num_flops / median(times["attend"]) / 1e9,
        "product_gflops": product_flops / median(times["product"]) / 1e9,
        "ratio": ratio,
        "bound": _PREFILL_SHARE,
        "holds": ratio >= _PREFILL_SHARE,
    }


if __name__ == "__main__":
    raise SystemExit(main())
