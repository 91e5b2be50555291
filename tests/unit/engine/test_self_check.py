from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.auto import AutoModelForCausalLM

from prefold.engine.attention import PagedAttention
from prefold.engine.loading import LoadedModel, LoadOptions, prepare_model
from prefold.engine.self_check import CheckMemory, ensure_checked, measure_difference
from prefold.errors import ConfigError
from support.tiny_models import make_llama, make_tokenizer


@pytest.fixture
def loaded() -> LoadedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        make_llama()
    )
    # The attention that tests replace.
    options = LoadOptions(attention="reference")
    return prepare_model(model, make_tokenizer(), options, 500)


def test_a_model_that_passed_is_not_checked_again(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "checks.json"
    assert ensure_checked(loaded, b"one", CheckMemory(path))
    assert not ensure_checked(loaded, b"one", CheckMemory(path))
    assert ensure_checked(loaded, b"two", CheckMemory(path))


def test_a_model_that_disagrees_is_refused_and_not_remembered(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = PagedAttention.attend
    monkeypatch.setattr(
        PagedAttention, "attend", lambda site, call: attend(site, call) * 1.01
    )
    memory = CheckMemory(tmp_path / "checks.json")
    with pytest.raises(ConfigError, match="llama cannot be served: its logits differ"):
        ensure_checked(loaded, b"one", memory)
    assert not memory.has_passed(b"one")


def test_a_result_that_is_no_number_is_refused(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = PagedAttention.attend
    monkeypatch.setattr(
        PagedAttention, "attend", lambda site, call: attend(site, call) * float("nan")
    )
    with pytest.raises(ConfigError, match="differ"):
        ensure_checked(loaded, b"one", CheckMemory(tmp_path / "checks.json"))


@pytest.mark.parametrize("content", ["", "{}", "not json", "[1"])
def test_a_damaged_memory_is_an_empty_one(
    loaded: LoadedModel, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "checks.json"
    path.write_text(content)
    assert ensure_checked(loaded, b"one", CheckMemory(path))
    assert CheckMemory(path).has_passed(b"one")


def test_attention_is_as_before_afterwards(loaded: LoadedModel) -> None:
    assert measure_difference(loaded) < 1e-5
    assert measure_difference(loaded) < 1e-5


def test_a_memory_nested_too_deeply_is_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "checks.json"
    path.write_text("[" * 90_000, encoding="utf-8")
    memory = CheckMemory(path)
    assert not memory.has_passed(b"x")
    memory.add(b"x")
    assert memory.has_passed(b"x")


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    (tmp_path / "checks.partial").symlink_to(victim)
    CheckMemory(tmp_path / "checks.json").add(b"x")
    assert victim.read_text(encoding="utf-8") == "precious"
