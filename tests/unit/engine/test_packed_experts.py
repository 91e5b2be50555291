from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from prefold.engine.experts import PACKED
from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine.packed_experts import pack_experts
from prefold.engine.packed_linear import PackedLinear
from prefold.engine.panel_weight import PanelWeight, pack_routers
from prefold.engine.panels import PanelMaker

_SIZES = {
    "hidden_size": 20,
    "intermediate_size": 36,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "head_dim": 10,
}
KINDS = {"mixtral": MixtralExperts, "gpt_oss": GptOssExperts}


def make_experts(kind: str) -> nn.Module:
    config = AutoConfig.for_model(kind, **_SIZES)
    config._experts_implementation = "batched_mm"
    torch.manual_seed(0)
    # transformers leaves these calls without annotations.
    make: Any = KINDS[kind]
    module: nn.Module = make(config)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.requires_grad_(requires_grad=False)


def choose(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    index = torch.rand(num_tokens, 4).argsort(dim=1)[:, :2]
    return index, torch.rand(num_tokens, 2)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_values_are_those_of_transformers_and_rows_keep_their_bits(kind: str) -> None:
    module = make_experts(kind)
    states = torch.randn(70, 20)
    index, weights = choose(70)
    expected = module(states, index, weights)
    assert pack_experts(module, PanelMaker()) == {}
    packed = getattr(module, PACKED)
    found = packed.run(module, states, index, weights)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for count in (1, 2, 3, 17, 33, 64):
        some = packed.run(module, states[:count], index[:count], weights[:count])
        assert torch.equal(some, found[:count])


def test_experts_that_cannot_be_packed_are_left() -> None:
    module = make_experts("mixtral").half()
    assert pack_experts(module, PanelMaker()) == {"": "its weights are float16"}
    assert not hasattr(module, PACKED)


@torch.inference_mode()
def test_a_router_multiplies_by_panels() -> None:
    config = AutoConfig.for_model("mixtral", **_SIZES)
    config._experts_implementation = "batched_mm"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    router = model.model.layers[0].mlp.gate
    states = torch.randn(33, 20)
    expected = router(states)
    assert pack_routers(model, PanelMaker()) == 1
    assert isinstance(router.weight, PanelWeight)
    found = router(states)
    torch.testing.assert_close(found[0], expected[0])
    assert torch.equal(found[2], expected[2])
    assert all(torch.equal(router(states[i : i + 1])[0][0], found[0][i]) for i in range(33))


@torch.inference_mode()
def test_a_router_of_float16_has_the_same_bits_for_every_number_of_rows() -> None:
    config = AutoConfig.for_model("mixtral", **_SIZES)
    torch.manual_seed(0)
    # transformers leaves this call without annotations.
    made: Any = AutoModelForCausalLM
    model: nn.Module = made.from_config(config, dtype=torch.float16)
    [router] = [m for m in model.modules() if type(m).__name__.endswith("Router")]
    nn.init.normal_(router.get_parameter("weight"))
    weight = router.get_parameter("weight").detach().clone()
    assert pack_routers(model, PanelMaker()) == 1
    assert router.weight.dtype is torch.float16
    assert torch.equal(router.weight + 0, weight)

    states = torch.randn(300, 20).half()
    together = nn.functional.linear(states, router.weight)
    assert together.dtype is torch.float16
    torch.testing.assert_close(together, (states.float() @ weight.float().t()).half())
    for count in (1, 16, 48):
        parts = [
            nn.functional.linear(part, router.weight) for part in torch.split(states, count)
        ]
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_router_that_weighs_in_float32_multiplies_by_panels_too(
    dtype: torch.dtype,
) -> None:
    weight = nn.Parameter(torch.randn(8, 33).to(dtype), requires_grad=False)
    maker = PanelMaker()
    shown = PanelWeight.of(PackedLinear(maker, maker.pack(weight), 8, None))
    rows = torch.randn(17, 33)
    wide = shown.layer(rows)
    for widened in (shown.type(torch.float32), shown.to(torch.float32), shown.float()):
        assert isinstance(widened, PanelWeight)
        assert widened.dtype is torch.float32
        for count in (1, 16, 17):
            product = nn.functional.linear(rows[:count], widened)
            assert product.dtype is torch.float32
            assert torch.equal(product, wide[:count])
        # Anything else is done with a copy, as wide as was asked for.
        assert torch.equal(widened + 0, weight.float())
    assert torch.equal(shown.to(torch.float64), weight.double())
    assert not isinstance(shown.to(torch.float64), PanelWeight)
