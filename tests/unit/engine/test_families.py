from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoConfig,
    BloomConfig,
    FalconConfig,
    LlamaConfig,
    MambaConfig,
    MptConfig,
    PreTrainedConfig,
    T5Config,
)

from prefold.engine import families
from prefold.engine.attention import AttentionCall
from prefold.engine.families import check_calls, check_config
from prefold.errors import ConfigError

LLAMA = LlamaConfig(num_hidden_layers=2)


def make_call(layer: int) -> AttentionCall:
    return AttentionCall(
        layer=layer,
        query=torch.zeros(1, 6, 16, 12),
        key=torch.zeros(1, 2, 16, 12),
        value=torch.zeros(1, 2, 16, 8),
        scaling=1.0,
        window=None,
        softcap=None,
        sinks=None,
        is_causal=True,
        other_keywords=(),
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BloomConfig(), "bloom cannot be served: .*position biases"),
        (FalconConfig(), "falcon cannot be served"),
        (MptConfig(), "mpt cannot be served"),
        (MambaConfig(), "mamba cannot be served: .*recurrent"),
        (AutoConfig.for_model("llama4"), "llama4 cannot be served: .*chunks"),
        (AutoConfig.for_model("llama4_text"), "llama4_text cannot be served: .*chunks"),
        (T5Config(), "t5 cannot be served: it has an encoder"),
        (AutoConfig.for_model("clip"), "clip cannot be served"),
        (
            AutoConfig.for_model(
                "cohere2",
                num_hidden_layers=2,
                layer_types=["full_attention", "chunked_attention"],
            ),
            "cohere2 cannot be served: .*chunked_attention",
        ),
        (AutoConfig.for_model("stablelm"), "stablelm cannot be served: .*replaced"),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_a_family_that_would_be_wrong_is_refused_by_name(
    config: PreTrainedConfig, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_config(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model_type", ["jamba", "falcon_h1", "qwen3_next", "rwkv", "recurrent_gemma"]
)
def test_a_model_with_a_state_is_refused_by_what_its_class_says(model_type: str) -> None:
    with pytest.raises(ConfigError, match="recurrent state beside or in place of keys"):
        check_config(AutoConfig.for_model(model_type))


@pytest.mark.parametrize(
    ("model_type", "layer_types", "words"),
    [
        ("lfm2", ["conv", "full_attention"], "LinearAttentionLayer"),
        ("minimax", ["linear_attention", "full_attention"], "LinearAttentionLayer"),
        ("llama", ["hybrid", "full_attention"], "LinearAttentionAndFullAttentionLayer"),
        ("llama", ["indexed_attention"] * 2, "DynamicIndexedLayer"),
    ],
)
def test_a_cache_that_is_more_than_kv_is_refused_whatever_its_layers_are_called(
    model_type: str,
    layer_types: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if every kind of layer were known.
    monkeypatch.setattr(families, "_KNOWN_LAYER_TYPES", frozenset(layer_types))
    config = AutoConfig.for_model(model_type, num_hidden_layers=2, layer_types=layer_types)
    with pytest.raises(ConfigError, match=f"its cache has a {words}"):
        check_config(config)


def test_layers_that_use_the_kv_of_others_are_no_state() -> None:
    check_config(
        AutoConfig.for_model(
            "gemma4_text",
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )
    )


def test_a_known_family_is_accepted() -> None:
    check_config(LLAMA)


def test_facts_are_read_off_the_calls() -> None:
    facts = check_calls(LLAMA, [make_call(0), make_call(1)])
    assert facts.num_heads == 6
    assert [(x.num_kv_heads, x.key_size, x.value_size) for x in facts.layer_shapes] == [
        (2, 12, 8),
        (2, 12, 8),
    ]


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([], "0 of its 2 layers"),
        ([make_call(0)], "1 of its 2 layers"),
        ([make_call(0), make_call(0)], "1 of its 2 layers"),
        ([make_call(0), replace(make_call(1), is_causal=False)], "layer 1 is not causal"),
        (
            [make_call(0), replace(make_call(1), other_keywords=("position_bias",))],
            "layer 1 passes position_bias",
        ),
    ],
)
def test_calls_that_would_be_served_wrongly_are_refused(
    calls: list[AttentionCall], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_calls(LLAMA, calls)
