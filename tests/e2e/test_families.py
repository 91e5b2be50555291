"""Tiny random models of many families against their own eager attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from prefold.engine.batch import SequenceSlice, StepPlan
from prefold.engine.families import check_config
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel, LoadOptions, prepare_model
from prefold.engine.model_runner import ModelRunner
from prefold.engine.self_check import measure_difference
from prefold.errors import ConfigError
from support.tiny_models import make_tokenizer

pytestmark = pytest.mark.e2e

_TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_LONG_FACTORS = [4.0, 3.0, 2.5, 2.0]

_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "long_factor": _LONG_FACTORS,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
}

#: Model type to what its configuration needs beyond ``_TINY``.
FAMILIES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 11},
    "gemma2": {
        "sliding_window": 11,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 8,
    },
    "gemma3_text": {
        "sliding_window": 11,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 8,
    },
    "phi": {},
    "phi3": {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32},
    "gpt_neox": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "cohere2": {
        "sliding_window": 11,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmo2": {},
    "starcoder2": {"sliding_window": 11},
    "granite": {"attention_multiplier": 0.2},
    "smollm3": {"no_rope_layer_interval": 2},
    "gpt_oss": {
        "sliding_window": 11,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "mixtral": {"num_local_experts": 4, "sliding_window": 11},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "deepseek_v3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "head_dim": 4,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
    "gemma4_text": {
        "sliding_window": 11,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


def tiny_config(model_type: str, **changes: object) -> PreTrainedConfig:
    return AutoConfig.for_model(
        model_type, **{**_TINY, **FAMILIES.get(model_type, {}), **changes}
    )


def fresh_model(config: PreTrainedConfig, attention: str | None = None) -> PreTrainedModel:
    """Return the same model of a configuration each time."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=torch.float32, attn_implementation=attention
    )
    # Larger weights than at initialisation, or attention is the same for every key.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or "sinks" in name:
                parameter.normal_(std=0.3)
    return model


def tiny_model(
    model_type: str, *, max_model_len: int = 100, **changes: object
) -> LoadedModel:
    config = tiny_config(model_type, **changes)
    check_config(config)
    return prepare_model(
        fresh_model(config), make_tokenizer(), LoadOptions(), max_model_len
    )


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_family_agrees_with_its_own_eager_attention(model_type: str) -> None:
    assert measure_difference(tiny_model(model_type)) < 1e-5


REFUSED = ("bloom", "falcon", "mpt", "mamba", "llama4", "llama4_text")


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_family_that_would_be_wrong_is_refused_by_name(model_type: str) -> None:
    with pytest.raises(ConfigError, match=f"type {model_type} cannot be served: "):
        check_config(AutoConfig.for_model(model_type))


def test_a_bidirectional_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="bert cannot be served"):
        tiny_model("bert")


def test_longrope_agrees_with_eager_alone_beside_a_longer_request() -> None:
    """The frequencies come from the longest possible sequence, not from the batch."""
    loaded = tiny_model("phi3")
    layout = loaded.layout(16, torch.float32)
    prompts = [
        np.random.default_rng(i).integers(3, 96, size) for i, size in enumerate((14, 90))
    ]
    tables = [np.array([7], np.int32), np.arange(6, dtype=np.int32)]
    slices = tuple(
        SequenceSlice(token_ids=prompt, start=0, block_ids=table, num_logits=len(prompt))
        for prompt, table in zip(prompts, tables, strict=True)
    )

    def run(*chosen: SequenceSlice) -> torch.Tensor:
        store = KvStore(layout, 8, dtype=torch.float32, device=torch.device("cpu"))
        return ModelRunner(loaded, store).execute(StepPlan(slices=chosen))

    rows = run(*slices)

    assert torch.equal(run(slices[0]), rows[:14])
    long_frequencies = torch.tensor(_LONG_FACTORS) * 10000.0 ** (torch.arange(4) / 4)
    model = fresh_model(tiny_config("phi3"), "eager").train(mode=False)
    for prompt, got in zip(prompts, torch.split(rows, [14, 90]), strict=True):
        # Makes transformers take the long set for the short prompt too.
        rotary: Any = model.get_submodule("model.rotary_emb")
        rotary.original_inv_freq = (1 / long_frequencies).float()
        with torch.inference_mode():
            expected = model(
                input_ids=torch.from_numpy(prompt)[None], use_cache=False
            ).logits[0]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
