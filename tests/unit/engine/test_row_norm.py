from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine import _kernels
from prefold.engine.row_norm import NativeNorm, describe_norms, replace_norms


def make(width: int, dtype: torch.dtype = torch.float32) -> LlamaRMSNorm:
    norm = LlamaRMSNorm(width, eps=1e-5)
    norm.weight.data = torch.linspace(0.5, 2.0, width).to(dtype)
    return norm.requires_grad_(requires_grad=False)


@pytest.mark.parametrize("width", [1, 7, 8, 100, 2048])
@pytest.mark.parametrize("kernel", _kernels.kernel_names())
@torch.inference_mode()
def test_a_norm_is_nearer_to_the_exact_one_than_torch_s(
    width: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFOLD_KERNEL", kernel)
    inner = make(width)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, width, generator=generator)
    model = nn.Sequential(inner)
    assert replace_norms(model) == 1
    norm = model[0]
    assert isinstance(norm, NativeNorm)
    assert norm.weight is inner.weight
    assert describe_norms(model) == "cpu-1"
    wide = rows.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * inner.weight
    errors = [float((each(rows) - exact).square().mean()) for each in (norm, inner)]
    # A norm of few numbers rounds as often as torch's.
    assert errors[0] <= errors[1] * 1.1
    assert all(
        torch.equal(norm(row[None])[0], whole)
        for row, whole in zip(rows, norm(rows), strict=True)
    )


@torch.inference_mode()
def test_narrow_rows_are_rounded_as_the_module_rounds_them() -> None:
    inner = make(100, torch.bfloat16)
    rows = torch.randn(50, 100).bfloat16()
    model = nn.Sequential(inner)
    assert replace_norms(model) == 1
    found, wanted = model(rows), inner(rows)
    assert found.dtype is torch.bfloat16
    # A number may lie on the other side of a rounding.
    assert (found == wanted).float().mean() > 0.99
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=0.0)


class HalvedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(hidden_states)
        return result * 0.5


@torch.inference_mode()
def test_what_is_no_such_norm_is_left() -> None:
    hooked = make(8)
    hooked.register_forward_hook(lambda *_: None)
    halved = HalvedRMSNorm(8)
    shifted = Gemma2RMSNorm(8)
    model = nn.ModuleList([hooked, halved, shifted, nn.LayerNorm(8)])
    before = list(model)
    assert replace_norms(model) == 0
    assert list(model) == before
    assert describe_norms(model) == "torch"
