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


class Pool:
    """A store of one layer and the block tables of some prompts."""

    def __init__(self, heads: Heads, prompts: Sequence[Prompt], seed: int = 0) -> None:
        self.heads = heads
        self.prompts = prompts
        counts = [-(-prompt.num_tokens // BLOCK_SIZE) for prompt in prompts]
        layout = KvLayout(
            block_size=BLOCK_SIZE,
            layers=(
                LayerShape(
                    num_kv_heads=heads.num_kv_heads,
                    key_size=heads.key_size,
                    value_size=heads.value_size,
                ),
            ),
            itemsize=4,
        )
        self.store = KvStore(
            layout, sum(counts), dtype=torch.float32, device=torch.device("cpu")
        )
        order = np.random.default_rng(seed).permutation(sum(counts)).astype(np.int32)
        self.tables = np.split(order, np.cumsum(counts)[:-1])

    def run(self, spans: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
        """Run a step of (prompt, start, end); return ``[tokens, heads, size]`` for each."""
        slices = [
            SequenceSlice(
                token_ids=np.zeros(end - start, np.int64),
                start=start,
                block_ids=self.tables[index][: -(-end // BLOCK_SIZE)],
                num_logits=0,
            )
            for index, start, end in spans
        ]
        num_tokens = sum(end - start for _, start, end in spans)
        num_rows = -(-num_tokens // 16) * 16
        site = PagedAttention(
            self.store, slices, num_rows=num_rows, num_heads=self.heads.num_heads
        )

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
