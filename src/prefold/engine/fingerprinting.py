"""Fingerprinting: reads off a loaded model and tokenizer everything that shapes KV.

Each digest covers content, never a name, and each setting is covered by one field, so
that ``Fingerprint.diff`` names what really changed. Where it is unclear whether a value
shapes KV it is included: a needless difference costs a miss, a forgotten one a wrong
answer.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from prefold.blocks.layout import KvOrder
from prefold.errors import ConfigError
from prefold.identity.encoding import Field, digest
from prefold.identity.fingerprint import Fingerprint

#: Entries of a model's configuration that cannot shape KV, at any level of it.
_IGNORED_ENTRIES = frozenset(
    {
        "_name_or_path",  # where the files were found
        "transformers_version",  # who wrote the file; the running one is in numerics
        "dtype",  # the checkpoint's wish; the parameters' own is ``compute_dtype``
        "torch_dtype",  # the same, in older files
        "id2label",  # names of a classifier's classes
        "label2id",
        "problem_type",  # a classifier's loss
        "return_dict",  # the Python type of the model's output
        "output_attentions",  # what else the output carries
        "output_hidden_states",
        "use_cache",  # always off: the cache is not the model's
    }
)

#: Entries that say how positions are encoded, counted to ``position_config``.
_POSITION_ENTRIES = frozenset(
    {
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "rotary_pct",
        "rotary_emb_base",
        "max_position_embeddings",
        "original_max_position_embeddings",
    }
)

#: A rotary module's factor on sine and cosine; with kinds of layers, one for each.
_ROTARY_SCALING = "attention_scaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """How KV is stored, as far as it is not the model's to say.

    Attributes:
        dtype: Of the stored keys and values.
        block_size: Tokens in a block.
        position_offset: Added to every position.
        order: Of the numbers inside a block.
    """

    dtype: torch.dtype
    block_size: int
    position_offset: int = 0
    order: KvOrder = KvOrder.TOKEN_MAJOR


def build_fingerprint(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    weights: bytes,
    kv_format: KvFormat,
    numerics: Mapping[str, str | int],
    adapter: bytes | None = None,
) -> Fingerprint:
    """Return the fingerprint of KV that ``model`` computes from now on.

    Takes about as long as writing the tokenizer to a file. Whatever still changes
    frequencies, dtypes or modules must have happened before.

    Args:
        model: Loaded, with its rotary frequencies fixed.
        tokenizer: The one that makes its prompts.
        weights: What ``weights_digest`` made of the model's weights.
        kv_format: How its KV is stored.
        numerics: What may move the last bit of a result: implementations, libraries,
            threads. The version of transformers is added to it.
        adapter: Digest of the adapter's weights, configuration and scale.

    Raises:
        ConfigError: The configuration holds a value that has no fixed written form.
    """
    # The model's code is transformers', so its version may change what is computed.
    numbers: dict[str, str | int] = {"transformers": transformers.__version__, **numerics}
    return Fingerprint(
        architecture=type(model).__name__,
        config=_digest_config(model.config),
        weights=weights,
        tokenizer=digest_tokenizer(tokenizer),
        chat_template=digest_chat_template(tokenizer),
        adapter=adapter,
        position_config=_digest_positions(model),
        position_offset=kv_format.position_offset,
        compute_dtype=_compute_dtype(model),
        kv_dtype=_dtype_name(kv_format.dtype),
        block_size=kv_format.block_size,
        layout_version=kv_format.order.value,
        numerics=digest("numerics", *sorted(numbers.items())),
    )


def _digest_config(config: PreTrainedConfig) -> bytes:
    entries, _ = _split(config.to_dict(), _IGNORED_ENTRIES | _POSITION_ENTRIES)
    return digest("model-config", _canonical("the model's configuration", entries))


def _digest_positions(model: PreTrainedModel) -> bytes:
    _, entries = _split(model.config.to_dict(), _POSITION_ENTRIES)
    return digest(
        "position-config",
        _canonical("the model's position settings", entries),
        tuple(_computed_buffers(model)),
        tuple(_rotary_scalings(model)),
    )


def _computed_buffers(model: PreTrainedModel) -> Iterator[Field]:
    """Yield the buffers that no checkpoint holds: frequencies and position tables.

    The weights digest does not cover them, so all are taken, whatever they are called.
    """
    stored = model.state_dict().keys()
    for name, buffer in sorted(model.named_buffers()):
        if name not in stored:
            flat = buffer.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
            data = flat.numpy().tobytes()
            yield (name, _dtype_name(buffer.dtype), tuple(buffer.shape), data)


def _rotary_scalings(model: PreTrainedModel) -> Iterator[Field]:
    for module_name, module in model.named_modules():
        for name, value in sorted(vars(module).items()):
            if name.endswith(_ROTARY_SCALING) and isinstance(value, int | float):
                yield (module_name, name, float(value))


def _compute_dtype(model: PreTrainedModel) -> str:
    # Some models keep a few modules in float32 whatever is asked for.
    names = {_dtype_name(parameter.dtype) for parameter in model.parameters()}
    return "+".join(sorted(names))


def digest_tokenizer(tokenizer: PreTrainedTokenizerBase) -> bytes:
    """Return the digest of what gives token ids their meaning."""
    special = _canonical("the special tokens", _special_tokens(tokenizer))
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        backend = tokenizer.backend_tokenizer
        if backend.truncation is not None or backend.padding is not None:
            # The arguments of its last call, left behind by it.
            backend = copy.deepcopy(backend)
            backend.no_truncation()
            backend.no_padding()
        content = backend.to_str()
    else:
        # Merges and the like are in the file: a tokenizer in Python keeps them to itself.
        parts = {
            "class": type(tokenizer).__name__,
            "vocabulary": tokenizer.get_vocab(),
            "file": _read_vocabulary_file(tokenizer),
        }
        content = _canonical("the tokenizer", parts)
    return digest("tokenizer", content, special)


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    return {
        "names": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "added": {
            str(token_id): repr(token)
            for token_id, token in tokenizer.added_tokens_decoder.items()
        },
    }


def _read_vocabulary_file(tokenizer: PreTrainedTokenizerBase) -> str | None:
    path = vars(tokenizer).get("vocab_file")
    if not isinstance(path, str) or not Path(path).is_file():
        return None
    return digest("vocabulary-file", Path(path).read_bytes()).hex()


def digest_chat_template(tokenizer: PreTrainedTokenizerBase) -> bytes | None:
    """Return the digest of the chat template; None if there is none."""
    template = tokenizer.chat_template
    if template is None:
        return None
    return digest("chat-template", _canonical("the chat template", template))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _split(
    entries: Mapping[str, object], names: frozenset[str]
) -> tuple[dict[str, object], dict[str, object]]:
    """Divide a configuration, and those inside it, into the rest and ``names``."""
    rest: dict[str, object] = {}
    named: dict[str, object] = {}
    for name, value in entries.items():
        if name in names:
            named[name] = value
        elif isinstance(value, dict) and "model_type" in value:
            # A configuration of its own, of a model inside the model.
            rest[name], named[name] = _split(value, names)
        else:
            rest[name] = value
    return rest, named


def _canonical(what: str, value: object) -> str:
    """Write ``value`` as JSON in its one canonical form."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{what} cannot be written down: {exc}") from exc


def _plain(value: object) -> object:
    if isinstance(value, torch.dtype):
        return _dtype_name(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} has no fixed written form")
