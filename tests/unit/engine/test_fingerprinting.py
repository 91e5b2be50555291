from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto import AutoModelForCausalLM, AutoTokenizer

from prefold.blocks.layout import KvOrder
from prefold.engine.digest_memory import DigestMemory
from prefold.engine.fingerprinting import KvFormat, build_fingerprint
from prefold.engine.weights_digest import digest_weights
from prefold.errors import ConfigError
from prefold.identity.fingerprint import Fingerprint
from support.processes import run_python
from support.tiny_models import (
    make_llama,
    make_phi3_longrope,
    make_tokenizer,
    save_model,
)

FORMAT = KvFormat(dtype=torch.float32, block_size=16)
NUMERICS: dict[str, str | int] = {"attention": "reference", "threads": 2}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def make_model(
    config: PreTrainedConfig | None = None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config or make_llama(), dtype=dtype
        )
    assert isinstance(model, PreTrainedModel)
    return model


def fingerprint(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    kv_format: KvFormat = FORMAT,
    numerics: dict[str, str | int] | None = None,
    adapter: bytes | None = None,
) -> Fingerprint:
    return build_fingerprint(
        model,
        tokenizer,
        weights=b"w",
        kv_format=kv_format,
        numerics=NUMERICS if numerics is None else numerics,
        adapter=adapter,
    )


MODEL = make_model()
TOKENIZER = make_tokenizer()
PLAIN = fingerprint(MODEL, TOKENIZER)


def with_tokenizer(change: Callable[[PreTrainedTokenizerFast], object]) -> Fingerprint:
    tokenizer = make_tokenizer()
    change(tokenizer)
    return fingerprint(MODEL, tokenizer)


def yarn(factor: float) -> dict[str, object]:
    return {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": factor,
        "original_max_position_embeddings": 2048 // int(factor),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_eps": 1.0000001e-6},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"num_key_value_heads": 4},
        {"an_entry_nobody_knows": 1},
        {"pretraining_tp": 2},
    ],
)
def test_any_other_entry_of_the_configuration_counts(change: dict[str, object]) -> None:
    changed = fingerprint(make_model(make_llama(**change)), TOKENIZER)
    assert changed.diff(PLAIN) == ("config",)


@pytest.mark.parametrize(
    "change",
    [
        {"name_or_path": "elsewhere/model"},
        {"id2label": {0: "no", 1: "yes"}},
        {"use_cache": False},
        {"output_hidden_states": True},
    ],
)
def test_what_cannot_shape_kv_does_not_count(change: dict[str, object]) -> None:
    changed = fingerprint(make_model(make_llama(**change)), TOKENIZER)
    assert changed.diff(PLAIN) == ()


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 10_000.5},
        {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
        yarn(2.0),
        yarn(4.0),
    ],
)
def test_rope_scaling_changes_the_position_config_only(
    parameters: dict[str, object],
) -> None:
    model = make_model(make_llama(rope_parameters=parameters))
    assert fingerprint(model, TOKENIZER).diff(PLAIN) == ("position_config",)


def test_frequencies_and_scaling_count_as_numbers() -> None:
    model = make_model()
    frequencies = model.get_buffer("model.rotary_emb.inv_freq")
    frequencies[-1] = torch.nextafter(frequencies[-1], torch.tensor(1.0))
    assert fingerprint(model, TOKENIZER).diff(PLAIN) == ("position_config",)
    model = make_model()
    vars(model.get_submodule("model.rotary_emb"))["attention_scaling"] = 1.0000001
    assert fingerprint(model, TOKENIZER).diff(PLAIN) == ("position_config",)


def test_the_chosen_set_of_longrope_frequencies_counts() -> None:
    def forward(model: PreTrainedModel, length: int) -> Fingerprint:
        model(torch.zeros(1, length, dtype=torch.int64))
        return fingerprint(model, TOKENIZER)

    model = make_model(make_phi3_longrope())
    short, long = forward(model, 8), forward(model, 200)
    assert long.diff(short) == ("position_config",)


def test_an_added_token_changes_the_tokenizer_only() -> None:
    changed = with_tokenizer(lambda tokenizer: tokenizer.add_tokens(["<|new|>"]))
    assert changed.diff(PLAIN) == ("tokenizer",)


def test_another_role_of_a_token_changes_the_tokenizer_only() -> None:
    def assign(tokenizer: PreTrainedTokenizerFast) -> None:
        tokenizer.pad_token = tokenizer.eos_token

    assert with_tokenizer(assign).diff(PLAIN) == ("tokenizer",)


def test_a_template_and_every_edit_of_it_change_the_template_only() -> None:
    seen = {PLAIN.chat_template}
    for template in (TEMPLATE, TEMPLATE + " ", {"default": TEMPLATE}, ""):

        def assign(tokenizer: PreTrainedTokenizerFast, template: object = template) -> None:
            tokenizer.chat_template = template

        changed = with_tokenizer(assign)
        assert changed.diff(PLAIN) == ("chat_template",)
        seen.add(changed.chat_template)
    assert len(seen) == 5


def test_what_a_call_leaves_in_the_tokenizer_does_not_count() -> None:
    def call(tokenizer: PreTrainedTokenizerFast) -> None:
        tokenizer("abc", truncation=True, max_length=2)
        assert tokenizer.backend_tokenizer.truncation is not None

    tokenizer = make_tokenizer()
    call(tokenizer)
    assert fingerprint(MODEL, tokenizer).diff(PLAIN) == ()
    # Nor does asking change the tokenizer.
    assert tokenizer.backend_tokenizer.truncation is not None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"block_size": 32}, "block_size"),
        ({"position_offset": 1}, "position_offset"),
        ({"order": KvOrder.DIMENSION_MAJOR_KEYS}, "layout_version"),
        ({"dtype": torch.bfloat16}, "kv_dtype"),
    ],
)
def test_each_part_of_the_format_is_its_own_field(
    change: dict[str, Any], field: str
) -> None:
    changed = fingerprint(MODEL, TOKENIZER, kv_format=replace(FORMAT, **change))
    assert changed.diff(PLAIN) == (field,)


@pytest.mark.parametrize(
    "numerics",
    [
        {"attention": "reference", "threads": 3},
        {"attention": "reference", "threads": "2"},
        {"attention": "reference", "threads": 2, "mkl": "off"},
        {"attention": "referenc", "ethreads": 2},
        {},
    ],
)
def test_numerics_count(numerics: dict[str, str | int]) -> None:
    changed = fingerprint(MODEL, TOKENIZER, numerics=numerics)
    assert changed.diff(PLAIN) == ("numerics",)


def test_the_order_of_numerics_and_an_equal_copy_do_not_count() -> None:
    turned = dict(reversed(NUMERICS.items()))
    changed = fingerprint(MODEL, TOKENIZER, numerics=turned)
    assert changed.diff(PLAIN) == ()


def test_the_version_of_the_model_s_code_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not through sys.modules: transformers puts a second module there for its processors.
    monkeypatch.setattr("prefold.engine.fingerprinting.transformers.__version__", "5.0.0")
    assert fingerprint(MODEL, TOKENIZER).diff(PLAIN) == ("numerics",)


def test_the_compute_dtype_is_that_of_the_parameters() -> None:
    changed = fingerprint(make_model(dtype=torch.bfloat16), TOKENIZER)
    assert changed.diff(PLAIN) == ("compute_dtype",)
    mixed = make_model(dtype=torch.bfloat16)
    mixed.get_submodule("model.norm").float()
    assert fingerprint(mixed, TOKENIZER).compute_dtype == "bfloat16+float32"


def test_an_adapter_counts() -> None:
    assert fingerprint(MODEL, TOKENIZER, adapter=b"a").diff(PLAIN) == ("adapter",)


def test_an_entry_without_a_written_form_is_a_sentence() -> None:
    model = make_model()
    model.config.odd = object()
    with pytest.raises(ConfigError, match="configuration cannot be written down"):
        fingerprint(model, TOKENIZER)


def loaded(path: Path, *, memory: Path) -> Fingerprint:
    model = AutoModelForCausalLM.from_pretrained(path)
    assert isinstance(model, PreTrainedModel)
    return build_fingerprint(
        model,
        AutoTokenizer.from_pretrained(path),
        weights=digest_weights(model, path, DigestMemory(memory)),
        kv_format=FORMAT,
        numerics=NUMERICS,
    )


def test_copies_agree_and_one_bit_of_the_weights_is_seen(tmp_path: Path) -> None:
    memory = tmp_path / "digests.json"
    first = save_model(make_llama(), tmp_path / "first")
    second = save_model(make_llama(), tmp_path / "second")
    plain = loaded(first, memory=memory)
    assert loaded(first, memory=memory) == plain
    assert loaded(second, memory=memory) == plain
    data = bytearray((second / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (second / "model.safetensors").write_bytes(data)
    assert loaded(second, memory=memory).diff(plain) == ("weights",)


SCRIPT = """
import sys
from pathlib import Path
from typing import Any
from transformers.models.auto import AutoModelForCausalLM, AutoTokenizer
from prefold.engine.digest_memory import DigestMemory
from prefold.engine.fingerprinting import KvFormat, build_fingerprint
from prefold.engine.weights_digest import digest_weights
import torch
path = Path(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(path)
fingerprint = build_fingerprint(
    model, AutoTokenizer.from_pretrained(path),
    weights=digest_weights(model, path, DigestMemory(path.parent / "digests.json")),
    kv_format=KvFormat(dtype=torch.float32, block_size=16),
    numerics={"attention": "reference", "threads": 2},
)
print(fingerprint.digest().hex())
"""


@pytest.mark.slow
def test_another_process_agrees(tmp_path: Path) -> None:
    path = save_model(make_llama(), tmp_path / "model")
    here = loaded(path, memory=tmp_path / "digests.json").digest().hex()
    assert run_python(SCRIPT, str(path)).split()[-1] == here


def test_building_changes_neither_model_nor_tokenizer() -> None:
    tokenizer = make_tokenizer()
    before = copy.deepcopy(MODEL.config.to_dict()), tokenizer.backend_tokenizer.to_str()
    fingerprint(MODEL, tokenizer)
    assert (MODEL.config.to_dict(), tokenizer.backend_tokenizer.to_str()) == before
