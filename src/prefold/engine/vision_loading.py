"""Vision loading: gives a loaded model its reader of images, if it takes any."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from prefold.engine.families import RecordingSite, takes_images
from prefold.engine.image_limits import ImageLimits
from prefold.engine.loading import LoadedModel, reading
from prefold.engine.model_inputs import check_embeddings, hidden_size_of
from prefold.engine.prompt_mixer import ImageReader, NoImages, PromptMixer

#: Whether images can be read at all.
HAS_PILLOW = importlib.util.find_spec("PIL") is not None

if HAS_PILLOW:
    from prefold.engine.image_check import check_images
    from prefold.engine.image_processors import load_processor
    from prefold.engine.vision_model import VisionModel

_NO_PILLOW = (
    "images need Pillow, which is not installed here; the server's operator can run: "
    "pip install 'prefold[vision]'"
)
_NO_TOWER = "this model takes no images; send text only, or use a model that takes them"


def make_mixer(
    loaded: LoadedModel, source: str | os.PathLike[str], limits: ImageLimits
) -> PromptMixer:
    """Return what reads prompts with images or embeddings for a model.

    Args:
        loaded: The model, ready to serve.
        source: The directory or hub id it came from.
        limits: Of a request's images.

    Raises:
        ConfigError: The model takes images and they would be served wrongly, or its
            processor cannot be read.
    """

    def check() -> None:
        check_embeddings(loaded.model, RecordingSite())

    return PromptMixer(
        _make_reader(loaded, os.fspath(source), limits),
        hidden_size=hidden_size_of(loaded.model),
        dtype=loaded.dtype,
        check_embeddings=check,
    )


def _make_reader(loaded: LoadedModel, source: str, limits: ImageLimits) -> ImageReader:
    config = loaded.model.config
    if not takes_images(config):
        return NoImages(_NO_TOWER)
    if not HAS_PILLOW:
        return NoImages(_NO_PILLOW)
    with reading(f"the model {source} has no image processor that can be read"):
        processor = load_processor(
            source, config, loaded.tokenizer, is_local=Path(source).is_dir()
        )
    vision = VisionModel(loaded.model, processor, limits)
    check_images(loaded, vision)
    return vision
