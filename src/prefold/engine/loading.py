"""Loading: a model directory or hub id to a model that is ready to serve.

Ready means: accepted by the family rules, attention and experts routed to this
package, rotary frequencies fixed, layers row-wise, nothing left to choose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.engine.adapter import AdapterHost
from prefold.engine.adapter_targets import LinearShape, recorded_targets
from prefold.engine.attention import ATTENTION_NAME, attend_to_site
from prefold.engine.attention_parts import attention_by_part, set_attention
from prefold.engine.experts import EXPERTS_NAME, run_experts
from prefold.engine.families import (
    NUM_RECORDED_ROWS,
    auto_class_of,
    check_config,
    record_attention,
)
from prefold.engine.native import choose_attention
from prefold.engine.quantization import scale_itemsize
from prefold.engine.rotary import fix_rotary
from prefold.engine.row_layers import replace_layers
from prefold.engine.step_attention import order_for
from prefold.errors import ConfigError

_MAX_NAME_LENGTH = 1024

#: What reading foreign files raises: missing, damaged, of another shape, not trusted.
_READ_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a model is loaded.

    Attributes:
        dtype: Of the weights and of what is computed.
        device: Where the model runs.
        max_model_len: Longest sequence in tokens; ``None`` for what the model allows.
        position_offset: Added to every position.
        num_threads: Threads of torch, process-wide; ``None`` leaves them.
        attention: ``"cpu"`` or ``"reference"``; see ``choose_attention``.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    max_model_len: int | None = None
    position_offset: int = 0
    num_threads: int | None = None
    attention: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to serve, and the facts the engine needs of it.

    Attributes:
        model: In evaluation mode, on its device.
        tokenizer: The model's own.
        layer_shapes: Keys and values a token leaves in each layer.
        num_heads: Most query heads of a layer.
        vocab_size: Length of a row of logits; token ids are below it.
        max_model_len: Longest sequence in tokens.
        position_offset: Added to every position.
        eos_token_ids: Tokens that end a reply.
        attention: The implementation in use.
        linears: Its layers that adapters can add to.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    layer_shapes: tuple[LayerShape, ...]
    num_heads: int
    vocab_size: int
    max_model_len: int
    position_offset: int
    eos_token_ids: tuple[int, ...]
    attention: str
    linears: Mapping[str, LinearShape] = field(repr=False)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def adapter_host(self) -> AdapterHost:
        """What it offers to adapters."""
        return AdapterHost(linears=self.linears, dtype=self.dtype, device=self.device)

    def layout(self, block_size: int, kv_dtype: torch.dtype) -> KvLayout:
        """Return the shape of this model's blocks.

        Raises:
            ConfigError: ``block_size`` is below one.
        """
        return KvLayout(
            block_size=block_size,
            layers=self.layer_shapes,
            itemsize=kv_dtype.itemsize,
            order=order_for(self.attention),
            scale_itemsize=scale_itemsize(kv_dtype),
        )


def check_model_name(name: str) -> None:
    """Refuse what can be neither a directory nor a hub id.

    Raises:
        ConfigError: It is empty, too long, or has a zero byte in it.
    """
    if not name:
        raise ConfigError("the model's name is empty; give a directory or a hub id")
    if len(name) > _MAX_NAME_LENGTH or "\0" in name:
        raise ConfigError("the model's name is neither a path nor a hub id")


def load_model(name: str | os.PathLike[str], options: LoadOptions) -> LoadedModel:
    """Load the model in a directory, or the one a hub id names.

    Raises:
        ConfigError: There is none, a part of it cannot be read, or its family or the
            options cannot be served; one sentence.
    """
    source = os.fspath(name)
    check_model_name(source)
    is_local = Path(source).is_dir()
    if not is_local and (Path(source).exists() or source.startswith((".", "/", "~"))):
        raise ConfigError(f"{source} is not a directory with a model")
    hint = "" if is_local else ", as a directory or from the hub"
    with reading(f"no model can be read from {source}{hint}"):
        config = AutoConfig.from_pretrained(source, local_files_only=is_local)
    check_config(config)
    max_model_len = resolve_max_model_len(config, options)
    tokenizer = load_tokenizer(source)
    _register()
    with reading(f"the weights of {source} cannot be read"):
        loaded: tuple[PreTrainedModel, dict[str, set[str]]]
        # Typed as the model alone, but with ``output_loading_info`` it is a pair.
        loaded = auto_class_of(config).from_pretrained(  # type: ignore[assignment]
            source,
            local_files_only=is_local,
            dtype=options.dtype,
            attn_implementation=attention_by_part(config, ATTENTION_NAME),
            experts_implementation=EXPERTS_NAME,
            output_loading_info=True,
        )
    model, report = loaded
    # transformers fills what a checkpoint lacks with random numbers.
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(
            f"the weights of {source} lack {len(missing)} tensors, as {missing[0]}"
        )
    # transformers wraps ``to``, and the wrapper loses its signature.
    model.to(options.device)  # type: ignore[arg-type]
    if options.device.type == "cpu":
        _detach_from_files(model)
    return prepare_model(model, tokenizer, options, max_model_len)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a directory, or the one a hub id names.

    Raises:
        ConfigError: It cannot be read.
    """
    with reading(f"the model {source} has no tokenizer that can be read"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, local_files_only=Path(source).is_dir()
        )
    return tokenizer


def prepare_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    options: LoadOptions,
    max_model_len: int,
) -> LoadedModel:
    """Make a model ready to serve, in place.

    Raises:
        ConfigError: Its layers do something that would be served wrongly.
    """
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    _register()
    model.train(mode=False).requires_grad_(requires_grad=False)
    set_attention(model, ATTENTION_NAME)
    model.set_experts_implementation(EXPERTS_NAME)
    num_positions = max_model_len + options.position_offset
    fix_rotary(model, num_positions, model.dtype)
    replace_layers(model)
    with recorded_targets(model, NUM_RECORDED_ROWS) as linears:
        facts = record_attention(model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        layer_shapes=facts.layer_shapes,
        num_heads=facts.num_heads,
        vocab_size=model.config.get_text_config(decoder=True).vocab_size,
        max_model_len=max_model_len,
        position_offset=options.position_offset,
        eos_token_ids=_eos_token_ids(model),
        attention=choose_attention(options.attention, model.device, facts.layer_shapes),
        linears=linears,
    )


def resolve_max_model_len(config: PreTrainedConfig, options: LoadOptions) -> int:
    """Return the longest sequence a model serves under ``options``.

    Raises:
        ConfigError: The options ask for positions that the model does not have.
    """
    entries = config.get_text_config(decoder=True).to_dict()
    # ``n_positions`` is what the oldest families call it.
    limit = entries.get("max_position_embeddings") or entries.get("n_positions")
    offset, wanted = options.position_offset, options.max_model_len
    if offset < 0:
        raise ConfigError(f"position_offset must not be negative, got {offset}")
    if limit is None:
        if wanted is None:
            raise ConfigError("the model states no longest sequence; set max_model_len")
        limit = wanted + offset
    longest: int = limit - offset
    if longest < 1 or (wanted is not None and not 1 <= wanted <= longest):
        raise ConfigError(
            f"max_model_len {wanted} with position_offset {offset} does not fit the"
            f" model's {limit} positions"
        )
    return longest if wanted is None else wanted


@torch.no_grad()
def _detach_from_files(model: PreTrainedModel) -> None:
    """Give a model memory of its own for its weights, one tensor after the other.

    They are in the mapped files until then: whoever wrote the next version over them
    would change the running model under its digest, or end the process.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _register() -> None:
    """Make this package's functions known to transformers, which finds them by name."""
    AttentionInterface.register(ATTENTION_NAME, attend_to_site)
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, run_experts)


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    sources = [model.config.get_text_config(decoder=True).to_dict()]
    if model.generation_config is not None:
        sources.insert(0, model.generation_config.to_dict())
    for entries in sources:
        found = entries.get("eos_token_id")
        if found is not None:
            return (found,) if isinstance(found, int) else tuple(found)
    return ()


@contextmanager
def reading(what_failed: str) -> Iterator[None]:
    """Turn what reading foreign files raises into one sentence.

    Raises:
        ConfigError: ``what_failed``, and the first line of the reason.
    """
    try:
        yield
    except _READ_ERRORS as exc:
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        raise ConfigError(f"{what_failed}: {lines[0]}") from exc
