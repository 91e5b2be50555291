"""Adapter files: what is read, what its digest covers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prefold.engine.adapter_loading import load_adapter
from prefold.engine.adapter_weights import WEIGHTS_NAME
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.errors import ConfigError
from support.tiny_adapters import make_config, make_weights, save_adapter, write_adapter
from support.tiny_models import make_llama, save_model

Tensors = dict[str, torch.Tensor]
Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = save_model(make_llama(), tmp_path_factory.mktemp("model"))
    return load_model(directory, LoadOptions())


def test_the_layers_that_can_be_adapted_are_all_but_the_head(loaded: LoadedModel) -> None:
    ends = {name.rpartition(".")[2] for name in loaded.linears}
    attention = {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert ends == attention | {"gate_proj", "up_proj", "down_proj"}
    assert len(loaded.linears) == 14


def test_the_digest_is_of_content_alone(loaded: LoadedModel, tmp_path: Path) -> None:
    def digest(name: str, **settings: object) -> bytes:
        path = save_adapter(loaded, tmp_path / name, **settings)  # type: ignore[arg-type]
        return load_adapter(path, loaded.adapter_host).digest

    first = digest("a")
    # Neither the place nor what changes nothing counts.
    assert digest("b") == first
    assert digest("c", lora_dropout=0.9, base_model_name_or_path="other") == first
    # The same scale said in another way is the same adapter.
    assert digest("d", lora_alpha=4, rank_pattern={}, use_rslora=True) == first
    others = [
        digest("e", seed=1),
        digest("f", lora_alpha=9),
        digest("g", alpha_pattern={"q_proj": 9}),
        digest("h", targets=("q_proj", "k_proj", "v_proj")),
        digest("i", rank=2, lora_alpha=4),
        digest("j", alora_invocation_tokens=[1, 2]),
        digest("k", alora_invocation_tokens=[12]),
    ]
    assert len({first, *others}) == len(others) + 1


def test_one_changed_bit_is_another_adapter(loaded: LoadedModel, tmp_path: Path) -> None:
    tensors = make_weights(loaded)
    path = write_adapter(tmp_path / "a", tensors, make_config())
    before = load_adapter(path, loaded.adapter_host).digest
    tensors[f"{Q}.lora_A.weight"].view(torch.int32)[0, 0] ^= 1
    write_adapter(path, tensors, make_config())
    assert load_adapter(path, loaded.adapter_host).digest != before


def test_equal_bytes_of_another_type_are_another_adapter(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    halves = {name: tensor.half() for name, tensor in make_weights(loaded).items()}
    brains = {name: tensor.view(torch.bfloat16) for name, tensor in halves.items()}
    first, second = (
        load_adapter(
            write_adapter(tmp_path / name, tensors, make_config()), loaded.adapter_host
        ).digest
        for name, tensors in (("half", halves), ("brain", brains))
    )
    assert first != second


def test_equal_matrices_of_other_layers_are_another_adapter(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    tensors = make_weights(loaded, targets=("k_proj",))
    moved = {name.replace("k_proj", "v_proj"): each for name, each in tensors.items()}
    first, second = (
        load_adapter(
            write_adapter(tmp_path / target, its, make_config(targets=(target,))),
            loaded.adapter_host,
        ).digest
        for target, its in (("k_proj", tensors), ("v_proj", moved))
    )
    assert first != second


def rename(old: str, new: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[new] = tensors.pop(old)

    return change


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t.pop(f"{Q}.lora_B.weight"), "lacks model.layers.0.self_attn.q_proj"),
        (lambda t: [t.pop(f"{Q}.{h}.weight") for h in ("lora_A", "lora_B")], "lacks"),
        (put(f"{Q}.lora_A.weight", torch.ones(3, 48)), "rank 4"),
        (put(f"{Q}.lora_B.weight", torch.ones(48, 3)), "rank 4"),
        (put(f"{Q}.lora_A.weight", torch.ones(4, 40)), "another model"),
        (put(f"{Q}.lora_B.weight", torch.ones(64, 4)), "another model"),
        (put(f"{Q}.lora_A.weight", torch.ones(4, 48, 1)), "matrix"),
        (put(f"{Q}.lora_A.weight", torch.ones(4, 48).int()), "matrix"),
        (put(f"{Q}.lora_A.weight", torch.full((4, 48), float("nan"))), "finite"),
        (put("lm_head.weight", torch.ones(2, 2)), "not part of a LoRA adapter"),
        (put(f"{Q}.lora_A.bias", torch.ones(4)), "biases"),
        (put(f"{Q}.lora_magnitude_vector", torch.ones(4)), "DoRA"),
        (put(f"{Q}.lora_embedding_A", torch.ones(4, 4)), "embedding"),
        (lambda t: t.clear(), "lacks"),
    ],
)
def test_tensors_that_are_not_as_announced_are_refused(
    loaded: LoadedModel, tmp_path: Path, change: Callable[[Tensors], object], word: str
) -> None:
    tensors = make_weights(loaded)
    change(tensors)
    path = write_adapter(tmp_path / "a", tensors, make_config())
    with pytest.raises(ConfigError, match=word) as caught:
        load_adapter(path, loaded.adapter_host)
    assert "\n" not in str(caught.value)


def test_matrices_beyond_the_targets_are_refused(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    path = write_adapter(
        tmp_path / "a", make_weights(loaded), make_config(targets=("q_proj", "k_proj"))
    )
    with pytest.raises(ConfigError, match="not among the target_modules"):
        load_adapter(path, loaded.adapter_host)


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens", "model.layers.7.x"])
def test_modules_that_are_none_of_the_model_are_refused(
    loaded: LoadedModel, tmp_path: Path, module: str
) -> None:
    tensors = {
        f"base_model.model.{module}.lora_A.weight": torch.ones(4, 48),
        f"base_model.model.{module}.lora_B.weight": torch.ones(264, 4),
    }
    path = write_adapter(tmp_path / "a", tensors, make_config(targets=(module,)))
    with pytest.raises(ConfigError, match="no linear layer of this model"):
        load_adapter(path, loaded.adapter_host)


def test_an_adapter_for_a_wider_model_is_refused(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    wide = {
        name: replace(shape, in_features=shape.in_features * 2)
        for name, shape in loaded.linears.items()
    }
    host = replace(loaded.adapter_host, linears=wide)
    path = save_adapter(loaded, tmp_path / "a")
    with pytest.raises(ConfigError, match="which has 96 and 24 in this model"):
        load_adapter(path, host)


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_pickled_weights_are_never_read(
    loaded: LoadedModel, tmp_path: Path, name: str
) -> None:
    path = save_adapter(loaded, tmp_path / "a")
    (path / WEIGHTS_NAME).unlink()
    # It would end the process if anything unpickled it.
    (path / name).write_bytes(b"cos\n_exit\n(I3\ntR.")
    with pytest.raises(ConfigError, match="never read"):
        load_adapter(path, loaded.adapter_host)


def test_files_cut_off_anywhere_are_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    path = save_adapter(loaded, tmp_path / "a")
    data = (path / WEIGHTS_NAME).read_bytes()
    for length in (0, 7, 8, 9, 200, len(data) // 2, len(data) - 1):
        (path / WEIGHTS_NAME).write_bytes(data[:length])
        with pytest.raises(ConfigError, match=WEIGHTS_NAME) as caught:
            load_adapter(path, loaded.adapter_host)
        assert "\n" not in str(caught.value)
    (path / WEIGHTS_NAME).write_bytes(b"\xff" * 8 + data)
    with pytest.raises(ConfigError, match=WEIGHTS_NAME):
        load_adapter(path, loaded.adapter_host)


@pytest.mark.parametrize("path", ["", "nowhere", "a\0b", "x" * 5000])
def test_a_path_that_is_no_directory_is_refused(loaded: LoadedModel, path: str) -> None:
    with pytest.raises(ConfigError, match="director"):
        load_adapter(path, loaded.adapter_host)


def test_a_missing_file_is_named(loaded: LoadedModel, tmp_path: Path) -> None:
    path = save_adapter(loaded, tmp_path / "a")
    (path / WEIGHTS_NAME).unlink()
    with pytest.raises(ConfigError, match=f"has no {WEIGHTS_NAME}"):
        load_adapter(path, loaded.adapter_host)


def test_weights_of_narrow_types_are_read(loaded: LoadedModel, tmp_path: Path) -> None:
    path = save_adapter(loaded, tmp_path / "a")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        tensors = {name: t.to(dtype) for name, t in make_weights(loaded).items()}
        save_file(tensors, path / WEIGHTS_NAME)
        adapter = load_adapter(path, loaded.adapter_host)
        assert adapter.dtype is torch.float32
        assert set(load_file(path / WEIGHTS_NAME)) == set(tensors)


def test_numbers_too_large_for_the_model_are_refused(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    tensors = make_weights(loaded)
    tensors[f"{Q}.lora_A.weight"] = torch.full((4, 48), 1e300, dtype=torch.float64)
    path = write_adapter(tmp_path / "a", tensors, make_config())
    with pytest.raises(ConfigError, match="too large for float32"):
        load_adapter(path, loaded.adapter_host)
