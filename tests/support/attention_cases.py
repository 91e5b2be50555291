"""Attention cases: random heads run through the pool, and a naive softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.engine.attention import AttentionCall, PagedAttention
from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.native import HAS_KERNELS, NATIVE, REFERENCE
from prefold.engine.quantization import QUANTIZED, quantize, scale_itemsize
from prefold.engine.step_attention import StepAttention, order_for

if HAS_KERNELS:
    from prefold.engine.native_attention import NativeAttention, NativeSites

BLOCK_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Shapes and options of one attention layer."""

    num_heads: int = 6
    num_kv_heads: int = 2
    key_size: int = 16
    value_size: int = 16
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    scaling: float = 0.3

    @property
    def sinks(self) -> torch.Tensor | None:
        return torch.linspace(-2, 2, self.num_heads) if self.has_sinks else None


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Queries, keys and values of one sequence, ``[heads, tokens, size]``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return self.query.shape[1]


def make_prompt(heads: Heads, num_tokens: int, seed: int = 0) -> Prompt:
    generator = torch.Generator().manual_seed(seed)

    def normal(num_heads: int, size: int) -> torch.Tensor:
        return torch.randn(num_heads, num_tokens, size, generator=generator) * 2

    return Prompt(
        query=normal(heads.num_heads, heads.key_size),
        key=normal(heads.num_kv_heads, heads.key_size),
        value=normal(heads.num_kv_heads, heads.value_size),
    )


def share_prefix(prompts: Sequence[Prompt], num_tokens: int) -> list[Prompt]:
    """Return the prompts with the keys and values of the first one's first tokens."""
    first = prompts[0]
    return [
        Prompt(
            query=prompt.query,
            key=torch.cat((first.key[:, :num_tokens], prompt.key[:, num_tokens:]), dim=1),
            value=torch.cat(
                (first.value[:, :num_tokens], prompt.value[:, num_tokens:]), dim=1
            ),
        )
        for prompt in prompts
    ]


def as_stored(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``[..., size]`` as it is read again after it was stored."""
    if dtype is not QUANTIZED:
        return numbers.to(dtype).float()
    stored, scales = quantize(numbers)
    return stored.float() * scales[..., None]


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a pool keeps KV and attends to it.

    Attributes:
        kernel: Name of a compiled kernel; None for the reference.
        shared_tokens: All prompts have the blocks of so many tokens in common.
    """

    kernel: str | None = None
    dtype: torch.dtype = torch.float32
    block_size: int = BLOCK_SIZE
    shared_tokens: int = 0


class Pool:
    """A store of one layer and the block tables of some prompts."""

    def __init__(
        self, heads: Heads, prompts: Sequence[Prompt], seed: int = 0, way: Way | None = None
    ) -> None:
        self.heads = heads
        self.prompts = prompts
        self.way = way = way or Way()
        num_shared = way.shared_tokens // way.block_size
        counts = [-(-prompt.num_tokens // way.block_size) for prompt in prompts]
        own = [count - num_shared for count in counts]
        layout = KvLayout(
            block_size=way.block_size,
            layers=(
                LayerShape(
                    num_kv_heads=heads.num_kv_heads,
                    key_size=heads.key_size,
                    value_size=heads.value_size,
                ),
            ),
            itemsize=way.dtype.itemsize,
            order=order_for(REFERENCE if way.kernel is None else NATIVE),
            scale_itemsize=scale_itemsize(way.dtype),
        )
        num_blocks = num_shared + sum(own)
        self.store = KvStore(
            layout, num_blocks, dtype=way.dtype, device=torch.device("cpu")
        )
        order = np.random.default_rng(seed).permutation(num_blocks).astype(np.int32)
        shared, rest = np.split(order, [num_shared])
        self.tables = [
            np.concatenate((shared, blocks))
            for blocks in np.split(rest, np.cumsum(own)[:-1])
        ]
        self._native = None
        if way.kernel is not None:
            self._native = NativeSites(self.store, way.kernel)

    def open(self, slices: Sequence[SequenceSlice], num_rows: int) -> StepAttention:
        """Open a step's attention."""
        if self._native is not None:
            return NativeAttention(self._native, slices)
        return PagedAttention(
            self.store, slices, num_rows=num_rows, num_heads=self.heads.num_heads
        )

    def run(self, spans: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
        """Run a step of (prompt, start, end); return ``[tokens, heads, size]`` for each."""
        slices = [
            SequenceSlice(
                token_ids=np.zeros(end - start, np.int64),
                start=start,
                block_ids=self.tables[index][: -(-end // self.way.block_size)],
                num_logits=0,
            )
            for index, start, end in spans
        ]
        num_tokens = sum(end - start for _, start, end in spans)
        num_rows = -(-num_tokens // 16) * 16
        site = self.open(slices, num_rows)

        def pack(name: str) -> torch.Tensor:
            parts = [vars(self.prompts[i])[name][:, start:end] for i, start, end in spans]
            rows = torch.cat(parts, dim=1)
            padding = rows.new_ones(rows.shape[0], num_rows - num_tokens, rows.shape[2])
            return torch.cat((rows, padding), dim=1)[None]

        call = AttentionCall(
            layer=0,
            query=pack("query"),
            key=pack("key"),
            value=pack("value"),
            scaling=self.heads.scaling,
            window=self.heads.window,
            softcap=self.heads.softcap,
            sinks=self.heads.sinks,
            is_causal=True,
            other_keywords=(),
        )
        rows = site.attend(call)[0, :num_tokens]
        return list(torch.split(rows, [end - start for _, start, end in spans]))


def attend_naively(heads: Heads, prompt: Prompt) -> torch.Tensor:
    """One softmax over a full matrix of scores, in float64."""
    shared = heads.num_heads // heads.num_kv_heads
    query = prompt.query.double()
    key = prompt.key.double().repeat_interleave(shared, 0)
    value = prompt.value.double().repeat_interleave(shared, 0)
    scores = query @ key.transpose(1, 2) * heads.scaling
    if heads.softcap is not None:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    position = torch.arange(prompt.num_tokens)
    hidden = position[None, :] > position[:, None]
    if heads.window is not None:
        hidden |= position[None, :] <= position[:, None] - heads.window
    scores = scores.masked_fill(hidden, -torch.inf)
    if heads.sinks is not None:
        column = heads.sinks.double()[:, None, None].expand(-1, prompt.num_tokens, 1)
        scores = torch.cat((scores, column), dim=2)
    weights = scores.softmax(-1)[:, :, : prompt.num_tokens]
    return (weights @ value).transpose(0, 1)
