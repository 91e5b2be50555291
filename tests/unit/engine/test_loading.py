from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, GPT2Config

from prefold.engine.loading import LoadOptions, load_model, resolve_max_model_len
from prefold.errors import ConfigError
from support.tiny_models import VOCAB_SIZE, make_llama, save_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_model(make_llama(), tmp_path / "model")


def test_facts_of_a_loaded_model(directory: Path) -> None:
    loaded = load_model(directory, LoadOptions(max_model_len=300, position_offset=5))
    assert loaded.vocab_size == VOCAB_SIZE
    assert loaded.max_model_len == 300
    assert loaded.position_offset == 5
    assert loaded.eos_token_ids == (VOCAB_SIZE - 2,)
    assert loaded.num_heads == 4
    assert loaded.layout(16, torch.float32).token_bytes == 2 * 2 * 2 * 12 * 4
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def refuse(path: Path | str, words: str, options: LoadOptions | None = None) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_model(path, options or LoadOptions())
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "not a directory")


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}")
    refuse(tmp_path / "file", "not a directory")


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, "no model can be read")


def test_a_model_without_tokenizer_is_refused(directory: Path) -> None:
    for file in directory.glob("tokenizer*"):
        file.unlink()
    refuse(directory, "no tokenizer")


def test_damaged_weights_are_refused(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    refuse(directory, "weights of .* cannot be read")


def test_missing_weights_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    refuse(directory, "weights of .* cannot be read")


def test_weights_that_lack_a_tensor_are_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    refuse(directory, "lack 1 tensors, as model.layers.1.mlp.up_proj.weight")


def test_weights_of_another_shape_are_refused(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["intermediate_size"] = 64
    (directory / "config.json").write_text(json.dumps(config))
    refuse(directory, "weights of .* cannot be read")


def test_a_family_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    BloomConfig().save_pretrained(tmp_path)
    refuse(tmp_path, "bloom cannot be served")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LoadOptions(max_model_len=0), "max_model_len 0"),
        (LoadOptions(max_model_len=2049), "2048 positions"),
        (LoadOptions(max_model_len=2048, position_offset=1), "position_offset 1"),
        (LoadOptions(position_offset=2048), "2048 positions"),
        (LoadOptions(position_offset=-1), "negative"),
    ],
)
def test_positions_the_model_does_not_have_are_refused(
    directory: Path, options: LoadOptions, words: str
) -> None:
    refuse(directory, words, options)


def test_the_longest_sequence_leaves_room_for_the_offset() -> None:
    assert resolve_max_model_len(GPT2Config(n_positions=64), LoadOptions()) == 64
    assert resolve_max_model_len(make_llama(), LoadOptions(position_offset=48)) == 2000
