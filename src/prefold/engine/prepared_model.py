"""Prepared model: the next version of an engine's model, loaded and checked beside it.

Preparing touches nothing that steps use, so it may take its time on another thread.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from functools import partial

from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from prefold.blocks.layout import KvLayout
from prefold.engine.assembly import Silence
from prefold.engine.checked_model import check_model
from prefold.engine.config import ModelLimits
from prefold.engine.fingerprinting import digest_chat_template, digest_tokenizer
from prefold.engine.loading import LoadedModel, load_tokenizer
from prefold.engine.model_runner import ModelRunner
from prefold.engine.parts import EngineParts, ModelOrigin
from prefold.engine.prompt import TEMPLATE_FAULTS
from prefold.engine.sampler import Sampler
from prefold.errors import ConfigError, IncompatibleModelError
from prefold.identity.fingerprint import Fingerprint

#: Seconds that running requests have to end before their model is replaced.
DEFAULT_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model that is loaded and checked, and is to take the place of another.

    Attributes:
        parts: Those of the engine, with the new model's in place of the old one's.
        limits: Of the new model.
        base: The fingerprint of the model that it was prepared to replace; None for any.
    """

    parts: EngineParts
    limits: ModelLimits
    base: Fingerprint | None = None


def prepare_swap(
    parts: EngineParts,
    path: str | os.PathLike[str] | None = None,
    *,
    position_offset: int | None = None,
    max_model_len: int | None = None,
) -> PreparedModel:
    """Load the next version of an engine's model, and check it as at start.

    Needs the memory of both models for as long as both are there.

    Args:
        parts: The engine's.
        path: A directory or a hub id; None for where the present one came from.
        position_offset: None for the present one.
        max_model_len: None for the one that was asked for at start, if any was.

    Raises:
        ConfigError: The model cannot be used; one sentence.
        IncompatibleModelError: Its KV does not fit into the blocks there are.
    """
    origin = _origin_of(parts)
    source = origin.source if path is None else os.fspath(path)
    settings = origin.settings
    if position_offset is not None:
        settings = replace(settings, position_offset=position_offset)
    if max_model_len is not None:
        settings = replace(settings, max_model_len=max_model_len)
    inspect = partial(_check_layout, origin.store.layout)
    try:
        model = check_model(source, settings, Silence(), inspect)
    except MemoryError as error:
        raise ConfigError(
            "there is not enough memory for a second model beside the one that runs; "
            "restart the engine with the new one"
        ) from error
    loaded, store = model.loaded, origin.store
    return PreparedModel(
        parts=replace(
            parts,
            runner=ModelRunner(loaded, store, row_multiple=model.exactness.row_multiple),
            sampler=Sampler(loaded.vocab_size),
            fingerprint=model.fingerprint,
            tokenizer=loaded.tokenizer,
            mixer=model.mixer,
            origin=ModelOrigin(source=source, settings=settings, store=store),
            adapter_host=loaded.adapter_host,
        ),
        limits=model.limits,
        base=parts.fingerprint,
    )


def prepare_template(
    parts: EngineParts, limits: ModelLimits, template: str | None = None
) -> PreparedModel:
    """Return the same model with another chat template.

    Args:
        parts: The engine's.
        limits: The engine's.
        template: Its text; None reads it from where the model came from.

    Raises:
        ConfigError: There is no tokenizer, the template is none, or more than it has
            changed where the model came from.
    """
    if parts.tokenizer is None:
        raise ConfigError("without a tokenizer there is no chat template")
    # A copy: prompts are being written with the present one. The vocabulary is shared.
    tokenizer = copy.copy(parts.tokenizer)
    if template is None:
        found = load_tokenizer(_origin_of(parts).source)
        if digest_tokenizer(found) != parts.fingerprint.tokenizer:
            raise ConfigError(
                "the tokenizer has changed as well as its chat template; swap the model, "
                "which reads both"
            )
        tokenizer.chat_template = found.chat_template
    else:
        tokenizer.chat_template = template
    _check_template(tokenizer)
    digest = digest_chat_template(tokenizer)
    fingerprint = replace(parts.fingerprint, chat_template=digest)
    return PreparedModel(
        parts=replace(parts, fingerprint=fingerprint, tokenizer=tokenizer),
        limits=limits,
        base=parts.fingerprint,
    )


def _origin_of(parts: EngineParts) -> ModelOrigin:
    if parts.origin is None:
        raise ConfigError(
            "this engine's model did not come from a directory or the hub, so there is no "
            "next version to load"
        )
    return parts.origin


def _check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.chat_template is None:
        return
    try:
        # Whether it takes this conversation is its own affair; it must be a template.
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template cannot be read: {error.message} (line {error.lineno})"
        ) from error
    except (TemplateError, *TEMPLATE_FAULTS):
        return


def _check_layout(running: KvLayout, loaded: LoadedModel, layout: KvLayout) -> None:
    """Refuse a model whose KV has another shape than the blocks there are."""
    del loaded
    if layout == running:
        return
    raise IncompatibleModelError(
        f"the new model's KV has {_describe(layout)}, and that of the running one "
        f"{_describe(running)}; restart with the new model"
    )


def _describe(layout: KvLayout) -> str:
    shapes = dict.fromkeys(layout.layers)
    heads = " or ".join(
        f"{s.num_kv_heads} heads of {s.key_size} + {s.value_size}" for s in shapes
    )
    scales = f" with scales of {layout.scale_itemsize}" if layout.scale_itemsize else ""
    return (
        f"{len(layout.layers)} layers, {heads} numbers of {layout.itemsize} bytes{scales} "
        f"and blocks of {layout.block_size} tokens"
    )
