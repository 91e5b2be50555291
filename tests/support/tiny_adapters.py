"""Tiny adapters for tests: random LoRA weights in files such as PEFT writes.

Made of tensors and JSON alone. Equal arguments give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.auto import AutoModelForCausalLM

from prefold.engine.adapter_config import CONFIG_NAME
from prefold.engine.adapter_weights import WEIGHTS_NAME
from prefold.engine.loading import LoadedModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def make_weights(
    loaded: LoadedModel,
    *,
    targets: Sequence[str] = ATTENTION,
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
) -> dict[str, torch.Tensor]:
    """Return random matrices for all layers of a model with these names' ends."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in loaded.linears.items():
        if not name.endswith(tuple(f".{target}" for target in targets)):
            continue
        for half, sizes in (
            ("lora_A", (rank, shape.in_features)),
            ("lora_B", (shape.out_features, rank)),
        ):
            values = torch.randn(sizes, generator=generator) * size
            tensors[f"base_model.model.{name}.{half}.weight"] = values
    return tensors


def make_config(
    *, targets: Sequence[str] = ATTENTION, rank: int = 4, **changes: object
) -> dict[str, object]:
    """Return a configuration as PEFT writes it."""
    plain: dict[str, object] = {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": "some/model",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "lora_alpha": 8,
        "lora_dropout": 0.1,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": list(targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    return {**plain, **changes}


def write_adapter(
    directory: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, object]
) -> Path:
    """Write both files of an adapter."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_NAME).write_text(json.dumps(config), encoding="utf-8")
    save_file(dict(tensors), directory / WEIGHTS_NAME)
    return directory


def save_adapter(
    loaded: LoadedModel,
    directory: Path,
    *,
    targets: Sequence[str] = ATTENTION,
    rank: int = 4,
    seed: int = 0,
    size: float = 0.3,
    **changes: object,
) -> Path:
    """Write a random adapter of a model; ``changes`` are of its configuration."""
    tensors = make_weights(loaded, targets=targets, rank=rank, seed=seed, size=size)
    config = make_config(targets=targets, rank=rank, **changes)
    return write_adapter(directory, tensors, config)


def save_merged(model: Path, adapter: Path, directory: Path, scale: float) -> Path:
    """Write a model with an adapter's products added to its weights, by plain torch."""
    merged = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    tensors = load_file(adapter / WEIGHTS_NAME)
    for key, down in tensors.items():
        if ".lora_A." not in key:
            continue
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        up = tensors[key.replace("lora_A", "lora_B")]
        layer = merged.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        layer.weight.data += scale * (up.double() @ down.double())
    # What the decorated method takes is lost on the type checker.
    merged.to(torch.float32).save_pretrained(directory)  # type: ignore[arg-type]
    return directory
