"""Tiny vision-language models for tests: random weights and real processors."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from transformers import (
    Idefics3Config,
    Idefics3Processor,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
)
from transformers.models.auto import AutoModelForImageTextToText
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
)

from support.tiny_models import make_tokenizer

_TEXT: dict[str, object] = {
    "vocab_size": 288,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 262,
    "pad_token_id": None,
}

_IDEFICS3_TOKENS = (
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
_QWEN_TOKENS = (
    *("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save_idefics3(directory: Path, *, longest_edge: int = 16, seed: int = 0) -> Path:
    """Write a tiny Idefics3: 4 positions an image or a part of one, of 16 x 16 pixels."""
    tokenizer = _tokenizer(_IDEFICS3_TOKENS, "<image>")
    config = Idefics3Config(
        image_token_id=_id_of(tokenizer, "<image>"),
        scale_factor=2,
        tie_word_embeddings=False,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 50,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
            "initializer_range": 0.2,
        },
        text_config={"model_type": "llama", **_TEXT},
    )
    _save_weights(config, directory, seed)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": longest_edge},
        max_image_size={"longest_edge": 16},
        do_image_splitting=longest_edge > 16,
    )
    processor = Idefics3Processor(
        images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template
    )
    processor.save_pretrained(directory)
    return directory


def save_qwen2_5_vl(directory: Path, *, seed: int = 0) -> Path:
    """Write a tiny Qwen2.5-VL: a position each 8 x 8 pixels, and three axes of them."""
    tokenizer = _tokenizer(_QWEN_TOKENS, "<|vision_start|><|image_pad|><|vision_end|>")
    ids = {
        name: _id_of(tokenizer, f"<|{token}|>")
        for name, token in (
            ("image_token_id", "image_pad"),
            ("video_token_id", "video_pad"),
            ("vision_start_token_id", "vision_start"),
            ("vision_end_token_id", "vision_end"),
        )
    }
    config = Qwen2_5_VLConfig(
        **ids,  # type: ignore[arg-type]
        tie_word_embeddings=False,
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 50,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 48,
            "initializer_range": 0.2,
        },
        text_config={
            **_TEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [2, 2, 2],
            },
        },
    )
    _save_weights(config, directory, seed)
    Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, min_pixels=64, max_pixels=2048
    ).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _tokenizer(tokens: Sequence[str], image: str) -> PreTrainedTokenizerFast:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = _CHAT_TEMPLATE.replace("IMAGE", image)
    return tokenizer


def _id_of(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def _save_weights(config: PreTrainedConfig, directory: Path, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)


def make_pixels(
    seed: int, height: int = 16, width: int = 16, channels: int = 3
) -> npt.NDArray[np.uint8]:
    """Return random pixels ``[height, width, channels]``."""
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def to_png(picture: Image.Image, **options: object) -> bytes:
    """Return a picture as a file without loss."""
    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def make_png(seed: int, height: int = 16, width: int = 16, channels: int = 3) -> bytes:
    """Return a file of random pixels."""
    return to_png(Image.fromarray(make_pixels(seed, height, width, channels)))
