from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine import _kernels
from prefold.engine.fused_layer import FusedLayer
from prefold.engine.fused_mlp import FusedMlp, fuse_mlp
from prefold.engine.layer_fusion import TrialSite, fuse_layer
from prefold.engine.panels import PanelMaker
from prefold.engine.row_layers import fuse
from support.fused_models import QueryBack, fused_of, layers_of, load, run
from support.tiny_models import (
    make_gemma2,
    make_llama,
    make_mistral,
    make_mixtral,
    make_phi3_longrope,
    make_qwen2,
)

pytestmark = pytest.mark.usefixtures("_inference")

FUSED = {"llama": make_llama(), "qwen2": make_qwen2(), "mistral": make_mistral()}
APART = {"gemma2": make_gemma2(), "mixtral": make_mixtral(), "phi3": make_phi3_longrope()}

PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    "mlp.act_fn",
)


@pytest.fixture(name="_inference")
def _make_inference() -> object:
    with torch.inference_mode():
        yield


class Shifted(nn.Module):
    """As an adapter wraps a part: what it gives, and something more."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.base_layer = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(states)
        return result + 0.25


def replace(layer: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    layer.get_submodule(parent).register_module(own, part)


def step(layer: nn.Module, site: object, *, plain: bool = False) -> torch.Tensor:
    """Run one layer on random rows, by its own class if it is to be plain."""
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(1, 9, 48, generator=generator)
    embeddings = tuple(torch.randn(2, 1, 9, 12, generator=generator))
    forward = fused_of(layer).plain if plain else layer
    found = forward(states, position_embeddings=embeddings, attention_site=site)
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.parametrize("family", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 13, 40])
def test_a_fused_model_gives_the_bits_of_its_parts(
    family: str, dtype: torch.dtype, rows: int
) -> None:
    loaded = load(FUSED[family], dtype)
    assert all(isinstance(vars(m)["forward"], FusedLayer) for m in layers_of(loaded))
    found = run(loaded, rows)
    assert torch.isfinite(found).all()
    for layer in layers_of(loaded):
        vars(layer).pop("forward")
        vars(layer.get_submodule("mlp")).pop("forward")
    assert torch.equal(run(loaded, rows), found)


@pytest.mark.parametrize("family", FUSED)
def test_the_attention_is_asked_for_the_same(family: str) -> None:
    layer = layers_of(load(FUSED[family]))[1]
    sites = (TrialSite(), TrialSite())
    for site, plain in zip(sites, (False, True), strict=True):
        step(layer, site, plain=plain)
    [[one], [other]] = (site.calls for site in sites)
    for name in ("layer", "scaling", "window", "softcap", "sinks", "is_causal"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("query", "key", "value"):
        assert torch.equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_is_replaced_takes_effect(name: str) -> None:
    layer = layers_of(load(make_llama()))[0]
    # The site's answer depends on nothing: what it was asked is looked at too.
    sites = (TrialSite(), TrialSite())
    before = step(layer, sites[0])
    inner = layer.get_submodule(name)
    replace(layer, name, Shifted(inner))
    after = step(layer, sites[1])
    calls = [site.calls[0] for site in sites]
    asked = [torch.cat([call.query, call.key, call.value], 1) for call in calls]
    assert not (torch.equal(before, after) and torch.equal(*asked))
    assert torch.equal(after, step(layer, TrialSite(), plain=True))
    # Taken off again, the layer is what it was.
    replace(layer, name, inner)
    assert torch.equal(step(layer, TrialSite()), before)


@pytest.mark.parametrize("name", ["mlp", "self_attn", *PARTS])
def test_hooks_of_a_part_run(name: str) -> None:
    layer = layers_of(load(make_llama()))[0]
    seen: list[nn.Module] = []
    handle = layer.get_submodule(name).register_forward_hook(
        lambda module, *_: seen.append(module)
    )
    expected = step(layer, QueryBack())
    assert len(seen) == 1
    handle.remove()
    assert torch.equal(step(layer, QueryBack()), expected)
    assert len(seen) == 1


def test_hooks_of_all_modules_run_for_every_part() -> None:
    layer = layers_of(load(make_llama()))[0]
    expected = step(layer, QueryBack())
    seen: list[nn.Module] = []
    handle = register_module_forward_hook(lambda module, *_: seen.append(module))
    with handle:
        assert torch.equal(step(layer, QueryBack()), expected)
    assert {id(layer.get_submodule(name)) for name in PARTS} <= set(map(id, seen))


def test_an_mlp_of_which_a_part_is_replaced_steps_aside_by_itself() -> None:
    layer = layers_of(load(make_llama()))[0]
    mlp = layer.get_submodule("mlp")
    states = torch.randn(1, 7, 48)
    before = mlp(states)
    fused = vars(mlp)["forward"]
    assert isinstance(fused, FusedMlp)
    by_part = fused.plain(states)
    assert isinstance(by_part, torch.Tensor)
    assert torch.equal(by_part, before)
    gate = mlp.get_submodule("gate_proj")
    mlp.register_module("gate_proj", Shifted(gate))
    wanted = mlp.get_submodule("down_proj")(
        mlp.get_submodule("act_fn")(gate(states) + 0.25)
        * mlp.get_submodule("up_proj")(states)
    )
    assert torch.equal(mlp(states), wanted)
    assert not torch.equal(wanted, before)


def test_a_call_with_more_than_is_known_is_left_to_the_class() -> None:
    layer = layers_of(load(make_llama()))[0]
    states, embeddings = torch.randn(1, 3, 48), tuple(torch.randn(2, 1, 3, 12))
    site = TrialSite()
    layer(
        states,
        position_embeddings=embeddings,
        attention_site=site,
        something=torch.ones(1),
    )
    assert site.calls[0].other_keywords == ("something",)


@pytest.mark.parametrize("family", APART)
def test_layers_of_another_kind_run_part_by_part(
    family: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "prefold.engine.row_layers"):
        loaded = load(APART[family])
    assert not any(
        isinstance(vars(m).get("forward"), FusedLayer) for m in layers_of(loaded)
    )
    assert any("model.layers.0 (" in message for message in caplog.messages)
    assert torch.isfinite(run(loaded, 5)).all()


class Scaled(nn.Module):
    """A gate whose parts have the right names, and that does something else with them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        for name, child in inner.named_children():
            self.register_module(name, child)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        gate, up, down, act = (
            self.get_submodule(name)
            for name in ("gate_proj", "up_proj", "down_proj", "act_fn")
        )
        result: torch.Tensor = down(act(gate(states)) * up(states) * 1.0001)
        return result


def test_parts_that_are_put_together_in_another_way_are_not_fused() -> None:
    layer = layers_of(load(make_llama()))[0]
    scaled = Scaled(layer.get_submodule("mlp"))
    assert fuse_mlp(scaled) == "its parts, one by one, give other bits"
    vars(layer).pop("forward")
    layer.register_module("mlp", scaled)
    assert fuse_layer(layer) == "its MLP is not fused"
    assert not {"forward"} & vars(layer).keys()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("self_attn.q_proj", "its self_attn.q_proj is a Shifted"),
        ("input_layernorm", "its input_layernorm is a Shifted"),
        ("mlp.up_proj", "its up_proj is a Shifted"),
    ],
)
def test_a_wrapped_part_keeps_a_layer_apart(name: str, wanted: str) -> None:
    loaded = load(make_llama())
    layer = layers_of(loaded)[0]
    for module in (layer, layer.get_submodule("mlp")):
        vars(module).pop("forward")
    replace(layer, name, Shifted(layer.get_submodule(name)))
    left = fuse(loaded.model)
    assert wanted in left.values()
    assert "model.layers.0" in left


def panels(maker: PanelMaker, outputs: int, inputs: int) -> _kernels.Panels:
    return maker.open(maker.pack(torch.randn(outputs, inputs)), outputs)


def test_parts_that_do_not_fit_are_refused() -> None:
    maker = PanelMaker()
    kernel = _kernels.kernel_names()[0]
    wide, narrow = panels(maker, 32, 16), panels(maker, 16, 32)
    with pytest.raises(ValueError, match="fit together"):
        _kernels.Mlp(gate=wide, up=wide, down=wide, function="silu")
    with pytest.raises(ValueError, match="no activation"):
        _kernels.Mlp(gate=wide, up=wide, down=narrow, function="tanh")
    other = panels(PanelMaker(), 32, 16)
    with pytest.raises(ValueError, match="share"):
        _kernels.Mlp(gate=wide, up=other, down=narrow, function="silu")
    norm = _kernels.RowNorm(torch.ones(16), epsilon=1e-6, kernel=kernel)
    with pytest.raises(ValueError, match="even"):
        _kernels.LayerStart(norm=norm, query=wide, key=wide, value=wide, head_size=5)
    with pytest.raises(ValueError, match="fit together"):
        _kernels.LayerStart(norm=norm, query=wide, key=wide, value=wide, head_size=12)
    mlp = _kernels.Mlp(gate=wide, up=wide, down=narrow, function="silu")
    with pytest.raises(ValueError, match="fit together"):
        _kernels.LayerEnd(projection=wide, norm=norm, mlp=mlp)
    with pytest.raises(ValueError, match="epsilon"):
        _kernels.RowNorm(torch.ones(16), epsilon=-1.0, kernel=kernel)
    start = _kernels.LayerStart(norm=norm, query=wide, key=wide, value=wide, head_size=8)
    states, turns, out = torch.zeros(2, 16), torch.zeros(2, 8), torch.zeros(2, 32)
    for wrong in (out[:1], out.bfloat16(), torch.zeros(2, 64)[:, ::2]):
        with pytest.raises(ValueError, match="the key"):
            start.run(states, turns, turns, out, wrong, out.clone(), num_threads=1)
    with pytest.raises(ValueError, match="rows of another size"):
        mlp.run(torch.zeros(2, 15), states, num_threads=1)
    with pytest.raises(ValueError, match="num_threads"):
        mlp.run(states, torch.zeros(2, 16), num_threads=0)
