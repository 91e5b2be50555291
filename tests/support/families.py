"""Families: tiny configurations of decoder-only architectures, accepted and refused.

The tests run over them; ``docs/families.md`` is made of the same rows (``family_table``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from prefold.engine.families import check_config
from prefold.engine.loading import LoadedModel, LoadOptions, prepare_model
from support.tiny_models import make_tokenizer

#: Longest sequence of the tiny models.
MAX_MODEL_LEN = 100

TINY = {
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

LONG_FACTORS = [4.0, 3.0, 2.5, 2.0]

_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
    "long_factor": LONG_FACTORS,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
}

_OLD_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}

_ALTERNATING = {
    "sliding_window": 11,
    "layer_types": ["sliding_attention", "full_attention"],
}

_LATENT = {
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
}

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture.

    Attributes:
        model_type: transformers' name of it.
        special: What sets it apart, in a few words.
        entries: What its tiny configuration needs beyond ``TINY``.
    """

    model_type: str
    special: str
    entries: Mapping[str, object] = field(default_factory=dict)


ACCEPTED = (
    Family(model_type="llama", special="grouped queries (4 heads on 2), rotary positions"),
    Family(model_type="qwen2", special="biases on queries, keys and values"),
    Family(model_type="qwen3", special="norms on queries and keys"),
    Family(model_type="mistral", special="sliding window", entries={"sliding_window": 11}),
    Family(
        model_type="gemma2",
        special="alternating windows, soft caps on scores and logits, tied head",
        entries={
            "sliding_window": 11,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "query_pre_attn_scalar": 8,
            "tie_word_embeddings": True,
        },
    ),
    Family(
        model_type="gemma3_text",
        special="alternating windows with frequencies of their own, tied head",
        entries={
            "sliding_window": 11,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 8,
            "tie_word_embeddings": True,
        },
    ),
    Family(
        model_type="gemma4_text",
        special="alternating windows with heads of their own size",
        entries={
            **_ALTERNATING,
            "global_head_dim": 16,
            "vocab_size_per_layer_input": 96,
            "hidden_size_per_layer_input": 8,
        },
    ),
    Family(
        model_type="phi",
        special="parallel residual, partial rotary, biases",
        entries={"partial_rotary_factor": 0.5},
    ),
    Family(
        model_type="phi3",
        special="frequencies that depend on the length (longrope)",
        entries={"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32},
    ),
    Family(
        model_type="glm",
        special="partial rotary over pairs of neighbours",
        entries={"partial_rotary_factor": 0.5},
    ),
    Family(
        model_type="gpt_neox",
        special="one head a key (MHA), parallel residual, partial rotary",
        entries={"rotary_pct": 0.5, "num_key_value_heads": 4},
    ),
    Family(
        model_type="gptj",
        special="parallel residual, partial rotary over pairs of neighbours",
        entries={**_OLD_SIZES, "rotary_dim": 4},
    ),
    Family(model_type="gpt2", special="learned positions, tied head", entries=_OLD_SIZES),
    Family(
        model_type="gpt_bigcode",
        special="one key head for all queries (MQA), learned positions",
        entries=_OLD_SIZES,
    ),
    Family(
        model_type="opt",
        special="learned positions that begin at 2, ReLU",
        entries={"ffn_dim": 48, "word_embed_proj_dim": 32},
    ),
    Family(
        model_type="cohere",
        special="parallel residual, scaled logits, tied head",
        entries={"tie_word_embeddings": True},
    ),
    Family(
        model_type="cohere2",
        special="parallel residual, windows with positions, full layers without",
        entries=_ALTERNATING,
    ),
    Family(
        model_type="smollm3",
        special="no positions in every other layer",
        entries={"no_rope_layer_interval": 2},
    ),
    Family(model_type="olmo", special="norms without weights"),
    Family(model_type="olmo2", special="norms behind attention and feed-forward"),
    Family(
        model_type="starcoder2",
        special="sliding window, biases",
        entries={"sliding_window": 11},
    ),
    Family(
        model_type="granite",
        special="multipliers on embeddings, residuals, scores and logits",
        entries={"attention_multiplier": 0.2},
    ),
    Family(
        model_type="gpt_oss",
        special="sinks, alternating windows, experts with biases",
        entries={
            **_ALTERNATING,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    Family(
        model_type="mixtral",
        special="experts, sliding window",
        entries={"num_local_experts": 4, "sliding_window": 11},
    ),
    Family(
        model_type="qwen2_moe",
        special="experts, one of them for every token",
        entries={**_EXPERTS, "shared_expert_intermediate_size": 24},
    ),
    Family(
        model_type="qwen3_moe",
        special="experts, norms on queries and keys",
        entries=_EXPERTS,
    ),
    Family(
        model_type="olmoe",
        special="experts, norms over all heads at once",
        entries={"num_experts": 4, "num_experts_per_tok": 2},
    ),
    Family(
        model_type="deepseek_v2",
        special="latent attention (MLA), experts in groups",
        entries={**_LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    ),
    Family(
        model_type="deepseek_v3",
        special="latent attention (MLA), latent queries, biased routing",
        entries={**_LATENT, "q_lora_rank": 16},
    ),
)

#: Refused: by transformers' default configuration but for their entries, or when loaded.
REFUSED = (
    Family(model_type="bloom", special="ALiBi in place of positions"),
    Family(model_type="mpt", special="ALiBi in place of positions"),
    Family(model_type="falcon", special="parallel residual, MQA, rotary or ALiBi"),
    Family(model_type="stablelm", special="partial rotary"),
    Family(model_type="llama4_text", special="attention in chunks"),
    Family(
        model_type="nemotron",
        special="partial rotary, squared ReLU",
        entries={**TINY, "partial_rotary_factor": 0.5},
    ),
    Family(model_type="mamba", special="recurrent"),
    Family(model_type="mamba2", special="recurrent"),
    Family(model_type="rwkv", special="recurrent"),
    Family(model_type="xlstm", special="recurrent"),
    Family(model_type="jamba", special="hybrid: Mamba and attention layers"),
    Family(model_type="qwen3_next", special="hybrid: gated delta nets and attention"),
    Family(model_type="falcon_h1", special="hybrid: both in every layer"),
    Family(model_type="recurrent_gemma", special="hybrid: recurrent units and windows"),
    Family(
        model_type="lfm2",
        special="hybrid: short convolutions and attention",
        entries={"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    ),
    Family(model_type="minimax", special="hybrid: linear and full attention"),
)

_ENTRIES = {family.model_type: family.entries for family in ACCEPTED}


def tiny_config(model_type: str, **changes: object) -> PreTrainedConfig:
    """Return a configuration of a few kilobytes of weights."""
    entries = _ENTRIES.get(model_type, {})
    return AutoConfig.for_model(model_type, **{**TINY, **entries, **changes})


def fresh_model(
    config: PreTrainedConfig,
    attention: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Return the same model of a configuration each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=torch.float32, attn_implementation=attention
        )
        # Larger weights than at initialisation, or attention is the same for every key.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1 or "sinks" in name:
                    parameter.normal_(std=0.3)
    # transformers wraps ``to``, and the wrapper loses its signature.
    model.to(dtype)  # type: ignore[arg-type]
    return model


def tiny_model(
    model_type: str,
    *,
    max_model_len: int = MAX_MODEL_LEN,
    dtype: torch.dtype = torch.float32,
    **changes: object,
) -> LoadedModel:
    """Return a model of a family, ready to serve."""
    config = tiny_config(model_type, **changes)
    check_config(config)
    return prepare_model(
        fresh_model(config, dtype=dtype),
        make_tokenizer(),
        LoadOptions(dtype=dtype),
        max_model_len,
    )
