"""Families: which models may be served, and why others may not.

A model is accepted only if transformers lets its attention be replaced, every layer is
full or sliding-window causal attention, all it keeps between two steps is keys and values,
and nothing that shapes the attention reaches the layers by a way that is not known here.
A model that breaks a rule would load and answer, and be wrong; so it is refused by name.

The rules are checked twice: on the configuration, before weights are read, and on what
the layers really pass to their attention, in one recorded forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from prefold.blocks.layout import LayerShape
from prefold.engine.attention import AttentionCall
from prefold.errors import ConfigError, InvariantError

#: Model types that are known to be wrong here, with the reason in words.
_REFUSED = {
    "bloom": "BLOOM adds position biases (ALiBi) inside its own attention",
    "falcon": "Falcon keeps its attention to itself",
    "mpt": "MPT adds position biases (ALiBi) inside its own attention",
    "llama4": "Llama 4 attends in chunks that only its mask knows of",
    "llama4_text": "Llama 4 attends in chunks that only its mask knows of",
}

#: Why a model with a state is refused. A block's keys and values hold for any sequence that
#: begins with its tokens, up to any of them; a state is that of one length alone.
_STATE = "it keeps a recurrent state beside or in place of keys and values"

_KNOWN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

#: What transformers keeps keys and values in; the last one for layers that use another's.
_KV_LAYERS = frozenset({DynamicLayer, DynamicSlidingWindowLayer, DummyLayer})

#: Rows of the recorded pass; any number will do.
NUM_RECORDED_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFacts:
    """What a model's layers pass to their attention.

    Attributes:
        layer_shapes: Keys and values, by layer index.
        num_heads: Most query heads of a layer.
    """

    layer_shapes: tuple[LayerShape, ...]
    num_heads: int


def check_config(config: PreTrainedConfig) -> None:
    """Refuse a model by its configuration.

    Raises:
        ConfigError: One sentence with the model type and the reason.
    """
    name = config.model_type
    text_config = config.get_text_config(decoder=True)
    for model_type in (name, text_config.model_type):
        if model_type in _REFUSED:
            _refuse(name, _REFUSED[model_type])
    if config.is_encoder_decoder:
        _refuse(name, "it has an encoder")
    mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    if takes_images(config):
        mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(config) not in mapping:
        _refuse(name, "transformers has no causal language model of this type")
    # The mapping is lazy, and typed as if it held strings.
    model_class: type[PreTrainedModel] = mapping[type(config)]  # type: ignore[assignment]
    if model_class._is_stateful:  # noqa: SLF001 -- as below
        _refuse(name, _STATE)
    if not model_class._supports_attention_backend:  # noqa: SLF001 -- has no public name
        _refuse(name, "transformers does not let its attention be replaced")
    layer_types = text_config.to_dict().get("layer_types") or ()
    unknown = sorted(set(layer_types) - _KNOWN_LAYER_TYPES)
    if unknown:
        _refuse(name, f"it has layers of the kind {', '.join(unknown)}")
    _check_cache(name, text_config)


def _check_cache(name: str, text_config: PreTrainedConfig) -> None:
    """Refuse a model whose own cache, as transformers makes it, is more than KV."""
    kinds = {type(layer) for layer in DynamicCache(config=text_config).layers}
    unknown = sorted(kind.__name__ for kind in kinds - _KV_LAYERS)
    if unknown:
        found = " and a ".join(unknown)
        _refuse(name, f"{_STATE} (its cache has a {found})")


def takes_images(config: PreTrainedConfig) -> bool:
    """Tell whether a model has an image tower beside its decoder."""
    return type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def auto_class_of(
    config: PreTrainedConfig,
) -> type[AutoModelForCausalLM | AutoModelForImageTextToText]:
    """Return the class that loads a model with all its parts."""
    return AutoModelForImageTextToText if takes_images(config) else AutoModelForCausalLM


class RecordingSite:
    """Attention that keeps what it was asked for and answers zeros."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        self.calls.append(call)
        _, heads, rows, _ = call.query.shape
        return call.value.new_zeros(1, rows, heads, call.value.shape[-1])


@torch.inference_mode()
def record_attention(model: PreTrainedModel) -> AttentionFacts:
    """Run a model once on a few tokens and check what its layers ask for.

    Raises:
        ConfigError: The model is one that would be served wrongly.
    """
    site = RecordingSite()
    device = next(model.parameters()).device
    tokens = torch.zeros(1, NUM_RECORDED_ROWS, dtype=torch.long, device=device)
    # Position 0 is one that every model is served with.
    positions = torch.zeros_like(tokens)
    try:
        model(
            input_ids=tokens, position_ids=positions, use_cache=False, attention_site=site
        )
    except TypeError as exc:
        # A forward without keywords of its own cannot carry the step to its layers.
        _refuse(
            model.config.model_type, f"its forward pass takes no further keywords ({exc})"
        )
    except InvariantError:
        # The keyword did not arrive, or a mask did that nobody here asked for.
        _refuse(
            model.config.model_type,
            "its layers do not pass a step on to their attention, or mask it themselves",
        )
    return check_calls(model.config, site.calls)


def check_calls(config: PreTrainedConfig, calls: Sequence[AttentionCall]) -> AttentionFacts:
    """Check the calls of one forward pass.

    Raises:
        ConfigError: One sentence with the model type and the reason.
    """
    name = config.model_type
    num_layers = config.get_text_config(decoder=True).num_hidden_layers
    layers = [call.layer for call in calls]
    if layers != list(range(num_layers)):
        _refuse(name, f"{len(set(layers))} of its {num_layers} layers attend as layers do")
    for call in calls:
        if call.other_keywords:
            _refuse(
                name,
                f"layer {call.layer} passes {', '.join(call.other_keywords)} to its"
                " attention, whose meaning is not known here",
            )
        if not call.is_causal:
            _refuse(name, f"the attention of layer {call.layer} is not causal")
    shapes = tuple(
        LayerShape(
            num_kv_heads=call.key.shape[1],
            key_size=call.key.shape[-1],
            value_size=call.value.shape[-1],
        )
        for call in calls
    )
    return AttentionFacts(
        layer_shapes=shapes, num_heads=max(call.query.shape[1] for call in calls)
    )


def _refuse(model_type: str, reason: str) -> None:
    raise ConfigError(f"models of type {model_type} cannot be served: {reason}")
