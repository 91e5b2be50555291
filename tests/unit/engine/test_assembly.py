from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prefold.blocks.layout import KvLayout, LayerShape
from prefold.engine import assembly, checked_model
from prefold.engine.assembly import assemble, resolve_num_blocks
from prefold.engine.engine import Engine
from prefold.engine.loading import LoadedModel, LoadOptions, load_model
from prefold.engine.model_settings import ModelSettings
from prefold.engine.request import SamplingParams
from prefold.errors import ConfigError, RequestError
from support.tiny_models import make_llama, save_model

LAYOUT = KvLayout(
    block_size=16,
    layers=(LayerShape(num_kv_heads=2, key_size=8, value_size=8),),
    itemsize=4,
)
BLOCK_BYTES = 16 * 2 * 16 * 4
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PREFOLD_MASTER_SECRET_FILE", raising=False)


def have_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    monkeypatch.setattr(assembly, "free_memory_bytes", lambda _: num_bytes)


def test_the_cache_takes_a_share_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_free(monkeypatch, 100 * BLOCK_BYTES)
    assert resolve_num_blocks(ModelSettings(), LAYOUT, CPU) == 30


@pytest.mark.parametrize(
    ("settings", "num_blocks"),
    [
        (ModelSettings(cache_memory=f"{BLOCK_BYTES * 5 + 1}B"), 5),
        (ModelSettings(cache_memory=BLOCK_BYTES), 1),
        (ModelSettings(cache_blocks=7), 7),
    ],
)
def test_the_cache_has_the_size_asked_for(
    monkeypatch: pytest.MonkeyPatch, settings: ModelSettings, num_blocks: int
) -> None:
    for free in (100 * BLOCK_BYTES, None):
        have_free(monkeypatch, free)
        assert resolve_num_blocks(settings, LAYOUT, CPU) == num_blocks


@pytest.mark.parametrize(
    ("settings", "free", "words"),
    [
        (ModelSettings(cache_blocks=7, cache_memory=1), 10**9, "not both"),
        (ModelSettings(cache_memory=BLOCK_BYTES - 1), 10**9, "not even one block"),
        (ModelSettings(cache_blocks=0), 10**9, "not even one block"),
        (ModelSettings(cache_blocks=11), 10 * BLOCK_BYTES, "only 20480 bytes"),
        (ModelSettings(cache_memory="much"), 10**9, "no memory size"),
        (ModelSettings(), None, "give cache_memory"),
        (ModelSettings(), 0, "not even one block"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: ModelSettings, free: int | None, words: str
) -> None:
    have_free(monkeypatch, free)
    with pytest.raises(ConfigError, match=words):
        resolve_num_blocks(settings, LAYOUT, CPU)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ModelSettings(device="abacus"), "no device"),
        (ModelSettings(device="meta"), "'cpu' or 'cuda'"),
        (ModelSettings(dtype="int8"), "dtype must be one of"),
        (ModelSettings(kv_dtype="int4"), "kv_dtype must be one of .*int8"),
        (ModelSettings(dtype="bfloat16", kv_dtype="float16"), "same as dtype"),
        (ModelSettings(dtype="bfloat16", kv_dtype="float32"), "same as dtype"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_is_loaded(
    settings: ModelSettings, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        assemble("nowhere", settings)


@pytest.mark.e2e
def test_a_model_in_a_directory_becomes_an_engine(tmp_path: Path) -> None:
    path = save_model(make_llama(), tmp_path / "model")
    engine = Engine.from_pretrained(path, cache_blocks=64)
    assert engine.num_cache_tokens == 64 * 16
    prompt = list(range(1, 40))
    params = SamplingParams(max_tokens=5, return_logits=True, ignore_eos=True)
    [cold] = engine.generate([prompt], params)
    [warm] = engine.generate([prompt], params)
    assert warm.usage.cached_tokens == 38 // 16 * 16 + 6
    assert cold.token_ids == warm.token_ids
    assert cold.logits is not None
    assert warm.logits is not None
    assert torch.equal(cold.logits, warm.logits)
    [text] = engine.generate(["some text"], params)
    assert text.usage.prompt_tokens > 0
    with pytest.raises(RequestError, match="outside the vocabulary"):
        engine.submit([10**6])
    engine.check_invariants()


@pytest.mark.e2e
def test_settings_that_shape_kv_are_in_the_fingerprint(tmp_path: Path) -> None:
    path = save_model(make_llama(), tmp_path / "model")
    prints = [
        assemble(path, settings).parts.fingerprint
        for settings in (
            ModelSettings(cache_blocks=4),
            ModelSettings(cache_blocks=8),
            ModelSettings(cache_blocks=4, position_offset=3),
            ModelSettings(cache_blocks=4, block_size=8),
        )
    ]
    assert prints[0] == prints[1]
    assert "position_offset" in prints[0].diff(prints[2])
    assert prints[0].diff(prints[3]) == ("block_size",)


@pytest.mark.parametrize(
    "change",
    [
        {"cache_blocks": 2.5},
        {"cache_blocks": "9"},
        {"cache_blocks": True},
        {"block_size": 16.0},
        {"block_size": "16"},
        {"num_threads": 2.5},
        {"num_threads": 0},
        {"num_threads": 100_000},
        {"max_model_len": "8"},
        {"position_offset": 1.5},
        {"dtype": []},
        {"device": 1},
    ],
)
def test_a_setting_of_a_wrong_type_or_size_is_one_sentence(
    change: dict[str, object], tmp_path: Path
) -> None:
    [name] = change
    with pytest.raises(ConfigError, match=name):
        assemble(tmp_path, ModelSettings(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b"])
def test_what_is_no_name_of_a_model_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        assemble(name, ModelSettings())


def test_weights_that_change_while_they_are_loaded_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model(make_llama(), tmp_path / "model")
    other = save_model(make_llama(), tmp_path / "other")
    load = load_model

    def load_slowly(name: str, options: LoadOptions) -> LoadedModel:
        loaded = load(name, options)
        (other / "model.safetensors").replace(model / "model.safetensors")
        return loaded

    monkeypatch.setattr(checked_model, "load_model", load_slowly)
    with pytest.raises(ConfigError, match="changed while"):
        assemble(model, ModelSettings(cache_blocks=4))
