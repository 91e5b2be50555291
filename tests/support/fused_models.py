"""Small models whose layers are fused, and layers of them for direct calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto import AutoModelForCausalLM

from prefold.engine.attention import AttentionCall, AttentionSite
from prefold.engine.fused_layer import FusedLayer
from prefold.engine.loading import LoadedModel, LoadOptions, prepare_model
from support.tiny_models import make_tokenizer


class QueryBack:
    """An attention site that gives every query back as its result."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        return call.query.transpose(1, 2)


def load(
    config: PreTrainedConfig,
    dtype: torch.dtype = torch.float32,
    *,
    max_length: int = 100,
    change: Callable[[nn.Module], None] = lambda _: None,
) -> LoadedModel:
    """Return a model with random weights, changed and made ready to serve."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=dtype
    )
    change(model)
    return prepare_model(model, make_tokenizer(), LoadOptions(dtype=dtype), max_length)


def layers_of(loaded: LoadedModel) -> list[nn.Module]:
    """Return a model's decoder layers."""
    return list(loaded.model.get_submodule("model.layers").children())


def fused_of(layer: nn.Module) -> FusedLayer:
    """Return the fused call of a layer."""
    forward = vars(layer)["forward"]
    assert isinstance(forward, FusedLayer)
    return forward


def run(loaded: LoadedModel, rows: int, site: AttentionSite | None = None) -> torch.Tensor:
    """Return the logits of all rows, at positions 0 and on; by default, none attends."""
    tokens = (torch.arange(rows)[None] * 7) % loaded.vocab_size
    output = loaded.model(
        input_ids=tokens,
        position_ids=torch.arange(rows)[None] % 100,
        use_cache=False,
        attention_site=site or QueryBack(),
    )
    logits: torch.Tensor = output.logits[0]
    return logits
