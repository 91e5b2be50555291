from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from prefold.engine.native import HAS_KERNELS

if not HAS_KERNELS:
    pytest.skip("the kernels were not built", allow_module_level=True)

from prefold.engine.packed_linear import PackedLinear
from prefold.engine.packing import pack_linears
from prefold.engine.panel_weight import PanelWeight
from prefold.engine.panels import PanelMaker

pytestmark = pytest.mark.usefixtures("_inference")

SHAPES = [(1, 1), (5, 37), (16, 128), (37, 11), (100, 257), (64, 600)]


@pytest.fixture(name="_inference")
def _make_inference() -> object:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def packed(inner: nn.Linear) -> PackedLinear:
    model = nn.Sequential(inner)
    assert pack_linears(model, PanelMaker()) == {}
    layer = model[0]
    assert isinstance(layer, PackedLinear)
    return layer


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", ["biased", "unbiased"])
def test_values_are_those_of_the_layer_it_is_made_of(
    outputs: int, inputs: int, dtype: torch.dtype, bias: str
) -> None:
    inner = nn.Linear(inputs, outputs, bias=bias == "biased").to(dtype)
    states = torch.randn(2, 4, inputs)
    wide = nn.functional.linear(
        states.double(),
        inner.weight.double(),
        inner.bias.double() if bias == "biased" else None,
    )
    weight = inner.weight.clone()
    layer = packed(inner)
    result = layer(states)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    torch.testing.assert_close(result, wide.float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(layer.weight, weight)
    assert layer.weight.dtype == dtype


def test_narrow_rows_are_computed_as_float32_and_rounded_once() -> None:
    layer = packed(nn.Linear(300, 50))
    states = torch.randn(3, 300).bfloat16()
    assert torch.equal(layer(states), layer(states.float()).bfloat16())


def test_narrow_weights_give_the_bits_of_the_same_weights_in_float32() -> None:
    narrow = nn.Linear(300, 50).bfloat16()
    wide = nn.Linear(300, 50)
    wide.load_state_dict({name: each.float() for name, each in narrow.state_dict().items()})
    states = torch.randn(19, 300)
    assert torch.equal(packed(narrow)(states), packed(wide)(states))


def test_states_with_gaps_and_without_rows_are_taken() -> None:
    layer = packed(nn.Linear(8, 3))
    states = torch.randn(8, 5).t()
    assert torch.equal(layer(states), layer(states.contiguous()))
    assert layer(states[:0]).shape == (0, 3)


@pytest.mark.parametrize(
    "states", [torch.zeros(2, 7), torch.zeros(2, 8, dtype=torch.float64), torch.tensor(1.0)]
)
def test_states_that_do_not_fit_are_refused(states: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="rows"):
        packed(nn.Linear(8, 3))(states)


def test_every_layer_is_replaced_once_and_gives_its_memory_up() -> None:
    shared = nn.Linear(2, 2)
    row = nn.Sequential(shared, nn.GELU(), nn.Linear(2, 3, bias=False))
    model = nn.ModuleDict({"a": shared, "b": row})
    weights = [weakref.ref(m.weight) for m in (shared, row[2])]
    maker = PanelMaker()
    assert pack_linears(model, maker) == {}
    gc.collect()
    assert all(weight() is None for weight in weights)
    assert model["a"] is row[0]
    before = row[2]
    assert pack_linears(model, maker) == {}
    assert row[2] is before


def test_a_turned_layer_of_gpt2_is_packed() -> None:
    # transformers leaves this call without annotations.
    inner = Conv1D(7, 20)  # type: ignore[no-untyped-call]
    states = torch.randn(3, 20)
    expected = inner(states)
    model = nn.Sequential(inner)
    pack_linears(model, PanelMaker())
    assert isinstance(model[0], PackedLinear)
    torch.testing.assert_close(model[0](states), expected)


class Wrapped(nn.Module):
    """As PEFT wraps a layer: the layer and two small ones beside it."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.base_layer = inner
        self.lora_A = nn.ModuleDict({"a": nn.Linear(inner.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"a": nn.Linear(2, inner.out_features, bias=False)})

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_layer(states)
        # No parameter any more once it is packed.
        dtype: torch.dtype = self.lora_A["a"].weight.dtype  # type: ignore[assignment]
        low: torch.Tensor = self.lora_B["a"](self.lora_A["a"](states.to(dtype)))
        return result + low * 0.5


def test_the_layers_of_a_wrapped_layer_are_packed() -> None:
    model = nn.Sequential(Wrapped(nn.Linear(20, 9)))
    states = torch.randn(3, 20)
    expected = model(states)
    assert pack_linears(model, PanelMaker()) == {}
    assert not any(isinstance(m, nn.Linear) for m in model.modules())
    torch.testing.assert_close(model(states), expected)


class Scaled(nn.Embedding):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- torch's name
        return super().forward(input) * 2.0


@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_embedding_reads_the_panels_of_its_head(
    kind: type[nn.Embedding], dtype: torch.dtype
) -> None:
    embedding = kind(37, 24).to(dtype)
    head = nn.Linear(24, 37, bias=False)
    head.weight = embedding.weight
    ids = torch.tensor([[0, 36, 5], [16, 15, 5]])
    expected, weight = embedding(ids), embedding.weight.clone()
    model = nn.ModuleDict({"embedding": embedding, "head": head})
    reference = weakref.ref(embedding.weight)
    assert pack_linears(model, PanelMaker()) == {}
    gc.collect()
    assert reference() is None
    assert model["embedding"] is embedding
    assert torch.equal(embedding(ids), expected)
    assert sum(p.numel() for p in model.parameters()) == 48 * 24
    assert isinstance(embedding.weight, PanelWeight)
    assert (embedding.weight.dtype, embedding.weight.shape) == (dtype, weight.shape)
    # Whatever else is done with the weights is done with the weights.
    assert torch.equal(embedding.weight * 1, weight)
    assert torch.equal(torch.stack([embedding.weight])[0], weight)
    rows = torch.randn(2, 24, dtype=dtype)
    assert torch.equal(nn.functional.linear(rows, embedding.weight), model["head"](rows))
    assert torch.equal(rows @ embedding.weight.T, rows @ weight.T)


def test_an_id_outside_the_embedding_is_refused() -> None:
    embedding, head = nn.Embedding(37, 24), nn.Linear(24, 37, bias=False)
    head.weight = embedding.weight
    pack_linears(nn.ModuleDict({"e": embedding, "h": head}), PanelMaker())
    for wrong in (-1, 37):
        with pytest.raises(ValueError, match="outside"):
            embedding(torch.tensor([wrong]))


def test_an_embedding_of_its_own_is_left() -> None:
    model = nn.ModuleDict({"e": nn.Embedding(5, 4), "h": nn.Linear(4, 5)})
    before = model["e"].weight
    pack_linears(model, PanelMaker())
    assert model["e"].weight is before


class Derived(nn.Linear):
    pass


def hooked() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    return layer


def with_forward() -> nn.Linear:
    layer = nn.Linear(4, 4)
    setattr(layer, "forward", torch.relu)  # noqa: B010 -- mypy keeps methods as they are
    return layer


def with_weight(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


LEFT = {
    "it is a Derived": Derived(4, 4),
    "it has hooks": hooked(),
    "it has hooks ": with_forward(),
    "its weights are float16": nn.Linear(4, 4).half(),
    "its weights are int8": with_weight(torch.zeros(4, 4, dtype=torch.int8)),
    "its weights are not loaded": nn.Linear(4, 4, device="meta"),
    "its weights are sparse": with_weight(torch.eye(4).to_sparse()),
    "its weights are not contiguous": with_weight(torch.zeros(4, 8)[:, ::2]),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_cannot_be_packed_is_left(why: str) -> None:
    layer = LEFT[why]
    model = nn.ModuleDict({"a": layer, "b": nn.Linear(4, 4)})
    assert pack_linears(model, PanelMaker()) == {"a": why.strip()}
    assert model["a"] is layer
    assert layer.weight is not None
    assert isinstance(model["b"], PackedLinear)


def test_weights_that_something_else_needs_are_left() -> None:
    derived, layer = Derived(4, 4), nn.Linear(4, 4)
    layer.weight = derived.weight
    model = nn.ModuleDict({"a": derived, "b": layer})
    assert set(pack_linears(model, PanelMaker())) == {"a", "b"}
    assert model["b"] is layer


def test_weights_that_are_changed_in_place_are_an_error() -> None:
    layer = packed(nn.Linear(4, 4))
    with torch.inference_mode(mode=False), pytest.raises(RuntimeError, match=r"[Ii]nplace"):
        layer.weight.add_(1)
