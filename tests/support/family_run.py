"""Family run: a family's model with and without the cache, in every precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.engine.config import SchedulerConfig
from prefold.engine.loading import LoadedModel
from prefold.engine.request import RequestOutput
from prefold.engine.row_layers import describe_linear
from prefold.engine.row_probe import Exactness, probe_rows
from support.families import TINY, Family, tiny_model
from support.tiny_engines import COLD, TinyEngine, are_equal_outputs, greedy

BLOCK_SIZE = 8

#: Longer than the windows and than some blocks, and no multiple of either.
_LENGTH = 45

#: Inside a block, so that a hit copies a part of one.
_COMMON = 30

#: Cuts chunks at positions that are no multiples of anything.
_NARROW = SchedulerConfig(max_step_tokens=7, max_running=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a model computes in, and what its KV is kept in."""

    dtype: torch.dtype
    kv_dtype: torch.dtype

    @property
    def name(self) -> str:
        """Such as ``float32`` or, with KV of another kind, ``float32, int8``."""
        names = [str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.kv_dtype)]
        return ", ".join(dict.fromkeys(names))


PRECISIONS = (
    Precision(dtype=torch.float32, kv_dtype=torch.float32),
    Precision(dtype=torch.bfloat16, kv_dtype=torch.bfloat16),
    Precision(dtype=torch.float16, kv_dtype=torch.float16),
    Precision(dtype=torch.float32, kv_dtype=torch.int8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyResult:
    """What running a family showed.

    Attributes:
        attention: The implementation that was taken for it.
        linear: Whose linear layers.
        identical: By name of a precision, whether every run had the bits of the cold one.
    """

    attention: str
    linear: str
    identical: dict[str, bool]


def run_family(family: Family) -> FamilyResult:
    """Run a family's tiny model in every precision."""
    by_dtype: dict[torch.dtype, tuple[LoadedModel, Exactness]] = {}
    identical = {}
    for precision in PRECISIONS:
        if precision.dtype not in by_dtype:
            made = tiny_model(family.model_type, dtype=precision.dtype)
            by_dtype[precision.dtype] = made, probe_rows(made)
        loaded, exactness = by_dtype[precision.dtype]
        identical[precision.name] = is_identical(loaded, exactness, precision.kv_dtype)
    plain, _ = by_dtype[torch.float32]
    implementation = describe_linear(plain.model).split("-")[0]
    return FamilyResult(
        attention=plain.attention,
        linear={"cpu": "packed"}.get(implementation, implementation),
        identical=identical,
    )


def is_identical(loaded: LoadedModel, exactness: Exactness, kv_dtype: torch.dtype) -> bool:
    """Tell whether cache on equals cache off and other cuts, bit for bit.

    Raises:
        AssertionError: The cache did not find what it had to.
    """
    wide, narrow = (
        TinyEngine(
            loaded,
            num_blocks=64,
            block_size=BLOCK_SIZE,
            scheduler=scheduler,
            kv_dtype=kv_dtype,
            row_multiple=exactness.row_multiple,
        )
        for scheduler in (SchedulerConfig(), _NARROW)
    )
    base = draw(_LENGTH)
    prompts = [base, np.concatenate((base[:_COMMON], draw(9, 1))), draw(20, 2)]
    cold = [wide.run(prompt, greedy(3), COLD) for prompt in prompts]

    wide.run(base, greedy(3))
    repeated = wide.run(base, greedy(3))
    assert repeated.usage.cached_tokens == _LENGTH - 1
    branched = wide.run(prompts[1], greedy(3))
    assert branched.usage.cached_tokens == _COMMON
    # In pieces, beside each other, and then all of it warm.
    pieces = narrow.generate(prompts, greedy(3))
    again = narrow.generate(prompts, greedy(3))
    assert all(output.usage.cached_tokens for output in again)

    runs: list[tuple[RequestOutput, RequestOutput]] = [
        (repeated, cold[0]),
        (branched, cold[1]),
        *zip(pieces, cold, strict=True),
        *zip(again, cold, strict=True),
    ]
    for engine in (wide, narrow):
        engine.assert_nothing_is_held()
    return exactness.is_exact and all(are_equal_outputs(*run) for run in runs)


def draw(num_tokens: int, seed: int = 0) -> TokenIds:
    """Return random tokens of the tiny vocabulary, none of them special."""
    rng = np.random.default_rng(seed)
    return rng.integers(3, TINY["vocab_size"], num_tokens).astype(TOKEN_DTYPE)
