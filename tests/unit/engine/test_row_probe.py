from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto import AutoModelForCausalLM

from prefold.engine.attention import PagedAttention
from prefold.engine.linear import TurnedLinear
from prefold.engine.loading import LoadedModel, LoadOptions, prepare_model
from prefold.engine.native import HAS_KERNELS
from prefold.engine.numerics import read_numerics
from prefold.engine.row_layers import find_uneven
from prefold.engine.row_probe import probe_rows
from support.tiny_models import make_llama, make_mixtral, make_tokenizer


class UnevenLinear(nn.Module):
    """A linear layer whose rows depend a little on how many there are."""

    def __init__(self, inner: nn.Module, at_rows: int) -> None:
        super().__init__()
        self.inner = inner
        self.at_rows = at_rows

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(states)
        if states.shape[-2] % self.at_rows:
            result = result + 1e-3
        return result


def load(config: PreTrainedConfig, options: LoadOptions | None = None) -> LoadedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config
    )
    return prepare_model(model, make_tokenizer(), options or LoadOptions(), 100)


@pytest.fixture
def _torch_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFOLD_LINEAR", "torch")


CONFIGS = pytest.mark.parametrize(
    "config", [make_llama(), make_mixtral()], ids=["llama", "mixtral"]
)


@CONFIGS
@pytest.mark.usefixtures("_torch_layers")
def test_a_model_without_uneven_layers_is_exact(config: PreTrainedConfig) -> None:
    loaded = load(config)
    assert find_uneven(loaded.model) is not None
    found = probe_rows(loaded)
    assert found.is_exact
    assert found.row_multiple == 16
    assert "512" in found.detail


@pytest.mark.skipif(not HAS_KERNELS, reason="the kernels were not built")
@CONFIGS
def test_packed_layers_need_no_padding(config: PreTrainedConfig) -> None:
    loaded = load(config)
    assert find_uneven(loaded.model) is None
    found = probe_rows(loaded)
    assert found.is_exact
    assert found.row_multiple == 1
    assert "301" in found.detail


@pytest.mark.skipif(not HAS_KERNELS, reason="the kernels were not built")
def test_a_layer_that_is_left_keeps_the_padding() -> None:
    loaded = load(make_llama())
    loaded.model.model.layers[1].mlp.up_proj = nn.Linear(48, 100)
    assert find_uneven(loaded.model) == "model.layers.1.mlp.up_proj"
    assert probe_rows(loaded).row_multiple == 16


@pytest.mark.skipif(not HAS_KERNELS, reason="the kernels were not built")
def test_padding_stays_where_rows_differ_without_it() -> None:
    loaded = load(make_llama())
    mlp = loaded.model.model.layers[0].mlp
    mlp.up_proj = UnevenLinear(mlp.up_proj, 16)
    found = probe_rows(loaded)
    assert found.is_exact
    assert found.row_multiple == 16


@pytest.mark.skipif(not HAS_KERNELS, reason="the kernels were not built")
def test_a_layer_that_is_uneven_only_when_fused_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = load(make_llama())
    layer = loaded.model.model.layers[0]
    fused = vars(layer)["forward"]

    def uneven(*arguments: object, **keywords: object) -> torch.Tensor:
        result: torch.Tensor = fused(*arguments, **keywords)
        is_by_part = bool(layer.mlp.up_proj._forward_hooks)
        return result + 1e-3 * (result.shape[1] == 301 and not is_by_part)

    monkeypatch.setitem(vars(layer), "forward", uneven)
    assert probe_rows(loaded).row_multiple == 16


def test_the_first_module_that_differs_is_named() -> None:
    loaded = load(make_llama())
    mlp = loaded.model.model.layers[0].mlp
    mlp.up_proj = UnevenLinear(mlp.up_proj, 512)
    found = probe_rows(loaded)
    assert not found.is_exact
    assert "model.layers.0.mlp.up_proj" in found.detail


def test_an_uneven_head_is_named() -> None:
    loaded = load(make_llama())
    loaded.model.lm_head = UnevenLinear(loaded.model.lm_head, 512)
    found = probe_rows(loaded)
    assert not found.is_exact
    assert "the head" in found.detail


def test_uneven_attention_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = PagedAttention.attend
    monkeypatch.setattr(
        PagedAttention,
        "attend",
        lambda site, call: attend(site, call) + 1e-4 * (call.query.shape[2] > 100),
    )
    found = probe_rows(load(make_llama(), LoadOptions(attention="reference")))
    assert not found.is_exact
    assert "self_attn" in found.detail


def test_a_larger_row_multiple_is_found_if_it_helps() -> None:
    loaded = load(make_llama())
    mlp = loaded.model.model.layers[0].mlp
    mlp.up_proj = UnevenLinear(mlp.up_proj, 32)
    found = probe_rows(loaded)
    assert found.is_exact
    assert found.row_multiple == 32


def test_hooks_are_gone_afterwards() -> None:
    loaded = load(make_llama())
    probe_rows(loaded)
    assert not any(module._forward_hooks for module in loaded.model.modules())


def test_an_uneven_end_of_the_logits_is_found() -> None:
    loaded = load(make_llama())
    inner = loaded.model.forward

    def uneven(**keywords: object) -> object:
        output = inner(**keywords)
        output.logits += 1e-3 * (output.logits.shape[1] == 128)
        return output

    loaded.model.forward = uneven
    found = probe_rows(loaded)
    assert not found.is_exact
    assert "the head" in found.detail


def test_the_layers_are_there_again_afterwards() -> None:
    loaded = load(make_llama())
    layers = loaded.model.model.layers
    probe_rows(loaded)
    assert loaded.model.model.layers is layers


def test_numerics_name_the_settings() -> None:
    loaded = load(make_llama(), LoadOptions(attention="reference"))
    assert ("cpu" in read_numerics(loaded, row_multiple=1).linear) == HAS_KERNELS
    numerics = read_numerics(loaded, row_multiple=16).describe()
    assert numerics["attention"] == "reference"
    assert numerics["partition_tokens"] == 256
    assert numerics["num_threads"] == torch.get_num_threads()
    assert all(isinstance(value, str | int) for value in numerics.values())


@pytest.mark.usefixtures("_torch_layers")
def test_linear_layers_go_back_to_the_plain_order_if_that_keeps_the_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward = TurnedLinear.forward

    def uneven(layer: TurnedLinear, states: torch.Tensor) -> torch.Tensor:
        is_turned = 48 <= states.shape[-2] <= layer.few_rows
        return forward(layer, states) + 1e-3 * is_turned

    monkeypatch.setattr(TurnedLinear, "forward", uneven)
    loaded = load(make_llama())
    assert read_numerics(loaded, row_multiple=16).linear == "torch-turned"
    found = probe_rows(loaded)
    assert found.is_exact
    assert read_numerics(loaded, row_multiple=16).linear == "torch"


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("width", "inner"), [(64, 172), (192, 576), (576, 1536)])
@pytest.mark.usefixtures("_torch_layers", "_threads")
@torch.inference_mode()
def test_what_it_promises_of_torch_s_layers_holds_for_every_batch(
    threads: int, width: int, inner: int
) -> None:
    # Whether torch's products keep a row's bits depends on the processor, the shape and
    # the number of threads: on some, two threads do not.
    torch.set_num_threads(threads)
    config = make_llama()
    config.hidden_size, config.intermediate_size = width, inner
    config.num_attention_heads = config.num_key_value_heads = width // 32
    config.head_dim, config.num_hidden_layers = 32, 1
    loaded = load(config)
    found = probe_rows(loaded)
    layers = [m for m in loaded.model.modules() if isinstance(m, TurnedLinear)]
    assert len(layers) >= 7
    differing = []
    for layer in layers:
        rows = torch.randn(1, 512, layer.in_features)
        expected = layer(rows[:, : found.row_multiple])
        for count in range(found.row_multiple, 513, found.row_multiple):
            result = layer(rows[:, :count])[:, : found.row_multiple]
            if not torch.equal(result, expected):
                differing.append((layer.in_features, layer.out_features, count))
    assert found.is_exact == (not differing)


def test_a_model_that_is_served_with_few_positions_can_be_probed() -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        make_llama()
    )
    assert probe_rows(prepare_model(model, make_tokenizer(), LoadOptions(), 5)).is_exact
