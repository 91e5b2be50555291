"""Checked model: loaded, tried for exactness, identified, compared with its own attention.

The same for an engine's first model and for every one that comes after it, so that none
is served by fewer checks than another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefold.blocks.layout import KvLayout
from prefold.engine.config import ModelLimits
from prefold.engine.demo_model import SetupProgress
from prefold.engine.digest_memory import DigestMemory
from prefold.engine.fingerprinting import KvFormat, build_fingerprint
from prefold.engine.loading import LoadedModel, check_model_name, load_model
from prefold.engine.model_settings import ModelSettings, kv_dtype_of, load_options
from prefold.engine.numerics import Numerics, read_numerics
from prefold.engine.prompt_mixer import PromptMixer
from prefold.engine.row_probe import Exactness, probe_rows
from prefold.engine.self_check import CheckMemory, ensure_checked
from prefold.engine.step_attention import order_for
from prefold.engine.user_dirs import state_dir
from prefold.engine.vision_loading import make_mixer
from prefold.engine.weights_digest import digest_weights, find_weight_files, stamp_weights
from prefold.errors import ConfigError
from prefold.identity.fingerprint import Fingerprint

#: Told about a model as soon as it is loaded; raises if it cannot be used.
Inspection = Callable[[LoadedModel, KvLayout], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModel:
    """A model that may be served, and what was found out about it."""

    loaded: LoadedModel
    mixer: PromptMixer
    layout: KvLayout
    numerics: Numerics
    exactness: Exactness
    fingerprint: Fingerprint

    @property
    def limits(self) -> ModelLimits:
        """What the model can take."""
        return ModelLimits(
            vocab_size=self.loaded.vocab_size,
            max_model_len=self.loaded.max_model_len,
            eos_token_ids=frozenset(self.loaded.eos_token_ids),
        )


def check_model(
    name: str, settings: ModelSettings, progress: SetupProgress, inspect: Inspection
) -> CheckedModel:
    """Load a model and check it.

    Args:
        name: A directory or a hub id.
        settings: How it is loaded.
        progress: Told about the steps that take a while.
        inspect: Asked before anything slow is done with the loaded model.

    Raises:
        ConfigError: The model or a setting cannot be used; one sentence.
    """
    check_model_name(name)
    options = load_options(settings)
    kv_dtype = kv_dtype_of(settings)
    stamps = stamp_weights(Path(name))
    progress.begin("Loading the model", _weight_bytes(Path(name)))
    loaded = load_model(name, options)
    layout = loaded.layout(settings.block_size, kv_dtype)
    inspect(loaded, layout)
    progress.begin("Trying whether rows keep their bits", None)
    exactness = probe_rows(loaded)
    numerics = read_numerics(loaded, row_multiple=exactness.row_multiple)
    fingerprint = _make_fingerprint(name, loaded, settings, numerics, progress)
    if stamp_weights(Path(name)) != stamps:
        raise ConfigError(
            f"the weights in {name} changed while they were loaded; try again when they "
            "are complete"
        )
    progress.begin("Checking the attention against the model's own", None)
    ensure_checked(
        loaded, fingerprint.digest(), CheckMemory(state_dir() / "self_checks.json")
    )
    return CheckedModel(
        loaded=loaded,
        mixer=make_mixer(loaded, name, settings.image_limits),
        layout=layout,
        numerics=numerics,
        exactness=exactness,
        fingerprint=fingerprint,
    )


def _weight_bytes(directory: Path) -> int | None:
    """Return the size of a local model's weights; None if there is no such directory."""
    if not directory.is_dir():
        return None
    sizes = (p.stat().st_size for p in find_weight_files(directory) if p.is_file())
    return sum(sizes) or None


def _make_fingerprint(
    name: str,
    loaded: LoadedModel,
    settings: ModelSettings,
    numerics: Numerics,
    progress: SetupProgress,
) -> Fingerprint:
    path = Path(name)
    has_begun = False

    def show(num_read: int, num_bytes: int) -> None:
        # Told only if there is something to read: mostly the digest is remembered.
        nonlocal has_begun
        if not has_begun:
            progress.begin("Reading the weights once, to know them again", num_bytes)
            has_begun = True
        progress.advance(num_read)

    weights = digest_weights(
        loaded.model,
        path if path.is_dir() else None,
        DigestMemory(state_dir() / "weights.json"),
        rehash=settings.rehash,
        progress=show,
    )
    return build_fingerprint(
        loaded.model,
        loaded.tokenizer,
        weights=weights,
        kv_format=KvFormat(
            dtype=kv_dtype_of(settings),
            block_size=settings.block_size,
            position_offset=settings.position_offset,
            order=order_for(loaded.attention),
        ),
        numerics=numerics.describe(),
    )
