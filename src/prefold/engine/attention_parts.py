"""Attention parts: which attention each part of a model uses.

The decoder's is replaced. An image tower is not causal, keeps no KV and is run for one
image at a time, so it keeps an attention of torch's own.
"""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

#: What towers use.
TOWER_ATTENTION = "sdpa"


def attention_by_part(config: PreTrainedConfig, name: str) -> str | dict[str, str]:
    """Return what transformers is told so that only the decoder uses ``name``."""
    decoder = config.get_text_config(decoder=True)
    if decoder is config:
        return name
    parts = {
        key: name if getattr(config, key, None) is decoder else TOWER_ATTENTION
        for key in config.sub_configs
    }
    return {"": name, **parts}


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Let a model's decoder use another attention."""
    model.set_attn_implementation(attention_by_part(model.config, name))


def tower_modules(model: nn.Module) -> frozenset[nn.Module]:
    """Return the modules of a model's towers, which are no part of its decoder."""
    if not isinstance(model, PreTrainedModel):
        return frozenset()
    decoder = model.config.get_text_config(decoder=True)
    towers = [
        module
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
        and module.config is not decoder
        and module.config is not model.config
    ]
    return frozenset(part for tower in towers for part in tower.modules())
