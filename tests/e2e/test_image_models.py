"""Which models' images are served: the checks at load, and a model that is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Gemma3Config, Gemma3Processor, PreTrainedTokenizerFast
from transformers.models.auto import AutoModelForImageTextToText
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from prefold.engine import vision_loading
from prefold.engine.assembly import Silence, assemble
from prefold.engine.engine import Engine
from prefold.engine.image_check import check_images
from prefold.engine.image_limits import ImageLimits
from prefold.engine.loading import LoadOptions, load_model
from prefold.engine.model_settings import ModelSettings
from prefold.engine.prompt_mixer import ImagePrompt
from prefold.engine.request import FinishReason
from prefold.engine.vision_model import VisionModel
from prefold.errors import ConfigError, RequestError
from support.tiny_models import END_TOKEN, make_tokenizer
from support.tiny_vision import make_png, save_idefics3, save_qwen2_5_vl

pytestmark = pytest.mark.e2e

SETTINGS = ModelSettings(cache_blocks=64, block_size=4)


def save_gemma3(directory: Path) -> Path:
    """Write a tiny Gemma 3, whose image positions see each other in both directions."""
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=make_tokenizer().backend_tokenizer,
        eos_token=END_TOKEN,
        extra_special_tokens={
            "boi_token": "<begin>",
            "eoi_token": "<end>",
            "image_token": "<image>",
        },
    )
    names = ("<image>", "<begin>", "<end>")
    ids = [tokenizer.get_vocab()[name] for name in names]
    config = Gemma3Config(
        image_token_index=ids[0],
        boi_token_index=ids[1],
        eoi_token_index=ids[2],
        mm_tokens_per_image=4,
        vision_config={
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 50,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        },
        text_config={
            "model_type": "gemma3_text",
            "vocab_size": 288,
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "max_position_embeddings": 512,
            "eos_token_id": 262,
            "pad_token_id": None,
            "bos_token_id": None,
        },
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    images = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    processor = Gemma3Processor(images, tokenizer, image_seq_length=4)
    processor.save_pretrained(directory)
    return directory


def test_a_model_whose_images_look_ahead_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in both directions"):
        assemble(save_gemma3(tmp_path), SETTINGS, Silence())


def test_a_model_that_does_more_with_an_image_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(save_qwen2_5_vl(tmp_path), LoadOptions())
    reader = vision_loading.make_mixer(loaded, tmp_path, ImageLimits()).images
    assert isinstance(reader, VisionModel)
    # Positions counted along one axis are what such a difference looks like.
    monkeypatch.setattr(VisionModel, "_positions", lambda *_: None)
    with pytest.raises(ConfigError, match="with an image, the logits differ"):
        check_images(loaded, reader)


def test_a_model_without_a_tower_and_a_machine_without_pillow_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(save_idefics3(tmp_path), LoadOptions())
    monkeypatch.setattr(vision_loading, "HAS_PILLOW", False)
    mixer = vision_loading.make_mixer(loaded, tmp_path, ImageLimits())
    prompt = ImagePrompt(text="<image>", images=[make_png(1)])
    with pytest.raises(RequestError, match="pip install"):
        mixer.mix_images(prompt, loaded.tokenizer.encode)


def test_a_request_with_images_ends_when_its_model_is_replaced(tmp_path: Path) -> None:
    first = save_idefics3(tmp_path / "one")
    second = save_idefics3(tmp_path / "two", seed=1)
    assembly = assemble(first, SETTINGS, Silence())
    engine = Engine(assembly.parts, assembly.config)
    prompt = ImagePrompt(text="see <image> now", images=[make_png(1)])
    request_id = engine.submit(prompt)
    engine.swap_model(second, drain=False)
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs[request_id].finish_reason is FinishReason.ABORTED
    assert "images" in str(outputs[request_id].error)
    engine.check_invariants()
    [output] = engine.generate([prompt])
    assert output.error is None
    assert output.usage.cached_tokens == 0
    engine.close()
