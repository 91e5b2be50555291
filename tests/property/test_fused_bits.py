"""Fused layers: a row's bits, whatever is computed with it, are those of the parts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine import _kernels
from support.fused_models import QueryBack, fused_of, layers_of, load
from support.tiny_models import make_llama

MOST_ROWS = 300
WIDTH, HEADS, SIZE = 192, 12, 16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_layer(**changes: object) -> nn.Module:
    sizes: dict[str, object] = {
        # Large enough for several threads, and no multiple of a panel.
        "hidden_size": WIDTH,
        "intermediate_size": 301,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 6,
        "head_dim": SIZE,
        "num_hidden_layers": 1,
        "initializer_range": 0.1,
    }
    dtype = changes.pop("dtype", torch.float32)
    assert isinstance(dtype, torch.dtype)
    [layer] = layers_of(load(make_llama(**{**sizes, **changes}), dtype))
    return layer


def make_rows(
    count: int, width: int, size: int, dtype: torch.dtype, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(1, count, width, generator=generator)
    turns = torch.randn(2, 1, count, size, generator=generator)
    return states.to(dtype), turns[0].to(dtype), turns[1].to(dtype)


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_every_row_count_and_thread_count_gives_the_same_bits(
    kernel: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFOLD_KERNEL", kernel)
    fused = fused_of(make_layer(dtype=DTYPES[dtype]))
    states, cosine, sine = make_rows(MOST_ROWS, WIDTH, SIZE, DTYPES[dtype])

    def run(rows: slice, threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        own, low, high = (each[:, rows].contiguous() for each in (states, cosine, sine))
        return fused.run(own, low, high, QueryBack())[0]

    alone = torch.cat([run(slice(row, row + 1), 1) for row in range(MOST_ROWS)])
    assert torch.isfinite(alone).all()
    # The portable kernel is for machines that are not timed.
    stride = 1 if kernel != "portable" else 23
    for count, threads in product(range(1, MOST_ROWS + 1, stride), (1, 2, 3, 4)):
        found = run(slice(0, count), threads)
        assert torch.equal(found, alone[:count]), (count, threads)


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@settings(max_examples=max(settings().max_examples // 4, 10))
@given(data=st.data())
@torch.inference_mode()
def test_a_fused_layer_gives_the_bits_of_its_parts(
    kernel: str, data: st.DataObject
) -> None:
    kv_heads = data.draw(st.integers(1, 3), "kv heads")
    heads = kv_heads * data.draw(st.integers(1, 3), "heads a kv head")
    size = 2 * data.draw(st.integers(1, 20), "half a head")
    # transformers wants it so, though the heads' size is their own.
    width = heads * data.draw(st.integers(1, 12), "width")
    dtype = DTYPES[data.draw(st.sampled_from(sorted(DTYPES)), "dtype")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFOLD_KERNEL", kernel)
        layer = make_layer(
            dtype=dtype,
            hidden_size=width,
            intermediate_size=data.draw(st.integers(1, 400), "inner"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=size,
            attention_bias=data.draw(st.booleans(), "attention bias"),
            mlp_bias=data.draw(st.booleans(), "MLP bias"),
            hidden_act=data.draw(st.sampled_from(["silu", "gelu", "gelu_pytorch_tanh"])),
        )
    rows = make_rows(
        data.draw(st.integers(1, 80), "rows"),
        width,
        size,
        dtype,
        data.draw(st.integers(0, 2**31), "seed"),
    )
    torch.set_num_threads(data.draw(st.integers(1, 4), "threads"))
    assert torch.equal(*run_and_wanted(layer, rows))


@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@pytest.mark.parametrize("width", [760, 776, 1600])
@torch.inference_mode()
def test_products_of_wide_rows_have_the_bits_of_each_by_itself(
    kernel: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a kernel keeps of rows from one product to the next may not hold so many inputs.
    monkeypatch.setenv("PREFOLD_KERNEL", kernel)
    for count in (1, 20, 100, 140):
        layer = make_layer(
            hidden_size=width,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=40,
        )
        rows = make_rows(count, width, 40, torch.float32)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found, wanted = run_and_wanted(layer, rows)
            assert torch.equal(found, wanted), (count, threads)


def run_and_wanted(
    layer: nn.Module, rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a fused layer gives, and what its parts give one by one."""
    fused, mlp = fused_of(layer), vars(layer.get_submodule("mlp"))
    found = fused.run(*rows, QueryBack())
    fused_mlp = mlp.pop("forward")
    states, cosine, sine = rows
    wanted = fused.plain(
        states, position_embeddings=(cosine, sine), attention_site=QueryBack()
    )
    mlp["forward"] = fused_mlp
    assert isinstance(wanted, torch.Tensor)
    return found, wanted
