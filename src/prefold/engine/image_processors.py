"""Image processors: the part of transformers' processors that images need.

A processor may also be for videos, and then be refused without torchvision, although
images need none. Those are made here of their image half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from transformers import (
    AutoImageProcessor,
    AutoProcessor,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.utils.import_utils import is_torchvision_available

from prefold.errors import ConfigError


class ImageHalf(Protocol):
    """What is used of a processor; transformers types none of it.

    Attributes:
        image_token: What stands in a text for an image.
        image_token_id: The token that stands at an image's positions.
        image_processor: Makes patches of pixels.
        tokenizer: The model's.
    """

    image_token: str
    image_token_id: int
    image_processor: ImagePatcher
    tokenizer: PreTrainedTokenizerBase

    def replace_image_token(self, image_inputs: object, image_idx: int) -> str:
        """Return the text that takes the place of an image's placeholder."""
        ...


class ImagePatcher(Protocol):
    """Makes patches of pixels, as a model's settings say."""

    def __call__(
        self, images: object, return_tensors: str, **keywords: object
    ) -> Mapping[str, torch.Tensor]: ...

    def to_dict(self) -> dict[str, object]:
        """Return the settings."""
        ...


class QwenImageProcessor(Qwen2_5_VLProcessor):
    """Qwen2-VL's and Qwen2.5-VL's processor without its video half."""

    # Which halves there are, transformers reads off this signature.
    def __init__(
        self,
        image_processor: object = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        chat_template: str | None = None,
    ) -> None:
        if tokenizer is None:
            raise ConfigError("a processor of images needs a tokenizer")
        self.image_token = "<|image_pad|>"  # noqa: S105 -- a token of text
        self.video_token = "<|video_pad|>"  # noqa: S105 -- a token of text
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        # transformers leaves this and what loads processors without annotations.
        ProcessorMixin.__init__(  # type: ignore[no-untyped-call]
            self, image_processor, tokenizer, chat_template=chat_template
        )


_HALVES = {"qwen2_vl": QwenImageProcessor, "qwen2_5_vl": QwenImageProcessor}


def load_processor(
    source: str,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_local: bool,
) -> ImageHalf:
    """Return the processor in a directory, or the one a hub id names.

    Raises:
        OSError, ValueError, ImportError, KeyError, RuntimeError: It cannot be read.
    """
    half = _HALVES.get(config.model_type)
    processor: ImageHalf
    if half is None or is_torchvision_available():
        processor = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            source, local_files_only=is_local
        )
    else:
        images = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            source, local_files_only=is_local
        )
        processor = half(images, tokenizer)  # type: ignore[assignment]
    return processor
