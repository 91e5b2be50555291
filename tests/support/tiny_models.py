"""Tiny models for tests: random weights of many architectures, with a byte tokenizer.

Everything is made in the process and written like a model from the hub, so that loading
is tested as well. Equal arguments give equal files.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)
from transformers.models.auto import AutoModelForCausalLM

#: Bytes, the merges of ``MERGES``, and the end token.
VOCAB_SIZE = 264

#: Pairs that are tokens of their own, so that some texts have several token lists.
MERGES = (("a", "b"), ("ab", "c"), ("t", "h"), ("th", "e"), ("e", "r"), ("o", "n"))

END_TOKEN = "<|end|>"  # noqa: S105 -- a token of text

_SIZES: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    # No multiple of 32, which the vector code of activations leaves a rest of.
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
_SPECIAL: dict[str, object] = {
    "bos_token_id": None,
    "eos_token_id": VOCAB_SIZE - 2,
    "pad_token_id": None,
}


def make_llama(**changes: object) -> PreTrainedConfig:
    return LlamaConfig.from_dict({**_SIZES, **_SPECIAL, **changes})


def make_qwen2(**changes: object) -> PreTrainedConfig:
    return Qwen2Config.from_dict({**_SIZES, **_SPECIAL, **changes})


def make_mistral(**changes: object) -> PreTrainedConfig:
    """Mistral with a window of 24 tokens, unless ``changes`` say otherwise."""
    return MistralConfig.from_dict({**_SIZES, **_SPECIAL, "sliding_window": 24, **changes})


def make_gemma2(**changes: object) -> PreTrainedConfig:
    """Gemma 2: soft caps on scores and logits, every other layer with a window."""
    sizes = {**_SIZES, "head_dim": 12, "query_pre_attn_scalar": 12}
    caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0}
    return Gemma2Config.from_dict(
        {**sizes, **_SPECIAL, **caps, "sliding_window": 24, **changes}
    )


def make_phi3_longrope(**changes: object) -> PreTrainedConfig:
    """Phi-3 whose rotary frequencies change beyond 128 positions."""
    half = 12 // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0 + 0.05 * i for i in range(half)],
        "long_factor": [1.5 + 0.4 * i for i in range(half)],
        "original_max_position_embeddings": 128,
    }
    own = {"original_max_position_embeddings": 128, "rope_parameters": rope}
    return Phi3Config.from_dict({**_SIZES, **_SPECIAL, **own, **changes})


def make_mixtral(**changes: object) -> PreTrainedConfig:
    """Mixtral: four experts, two of them for each token."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralConfig.from_dict({**_SIZES, **_SPECIAL, **experts, **changes})


def save_model(config: PreTrainedConfig, directory: Path, *, seed: int = 0) -> Path:
    """Write a model of random weights, and the byte tokenizer, into ``directory``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: any text has tokens, and bytes any token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *("".join(pair) for pair in MERGES)]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES), byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    tokenizer.add_special_tokens({"eos_token": END_TOKEN})
    # The model has one row more than needed, as models from the hub often have.
    assert len(tokenizer) == VOCAB_SIZE - 1
    return tokenizer
