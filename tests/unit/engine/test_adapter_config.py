"""Adapter configurations: what they mean, and what is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefold.engine.adapter_config import (
    CONFIG_NAME,
    parse_adapter_config,
    read_adapter_config,
)
from prefold.errors import ConfigError
from support.tiny_adapters import make_config

Q0, Q1 = (f"model.layers.{i}.self_attn.q_proj" for i in (0, 1))
DOWN1 = "model.layers.1.mlp.down_proj"
LAYERS = (Q0, Q1, DOWN1)


@pytest.mark.parametrize(
    ("changes", "adapted"),
    [
        ({"target_modules": ["q_proj"]}, (Q0, Q1)),
        ({"target_modules": ["self_attn.q_proj"]}, (Q0, Q1)),
        ({"target_modules": [Q1]}, (Q1,)),
        ({"target_modules": ["proj"]}, ()),
        ({"target_modules": r".*\.1\..*"}, (Q1, DOWN1)),
        ({"target_modules": r"q_proj"}, ()),
        ({"target_modules": "all-linear"}, LAYERS),
        ({"target_modules": "All-Linear", "exclude_modules": ["q_proj"]}, (DOWN1,)),
        ({"target_modules": "all-linear", "exclude_modules": r".*\.0\..*"}, (Q1, DOWN1)),
        ({"target_modules": ["q_proj", "down_proj"], "layers_to_transform": 1}, LAYERS[1:]),
        ({"target_modules": ["q_proj"], "layers_to_transform": [0, 2]}, (Q0,)),
        (
            {
                "target_modules": ["q_proj"],
                "layers_to_transform": [1],
                "layers_pattern": "layers",
            },
            (Q1,),
        ),
        (
            {
                "target_modules": ["q_proj"],
                "layers_to_transform": [1],
                "layers_pattern": ["blocks"],
            },
            (),
        ),
        # A whole name is taken as it is, as PEFT does.
        ({"target_modules": [Q0], "layers_to_transform": [1]}, (Q0,)),
    ],
)
def test_targets_are_those_of_peft(
    changes: dict[str, object], adapted: tuple[str, ...]
) -> None:
    config = parse_adapter_config(make_config(**changes))  # type: ignore[arg-type]
    assert tuple(name for name in LAYERS if config.adapts(name)) == adapted


def test_patterns_give_ranks_and_scales_their_own() -> None:
    config = parse_adapter_config(
        make_config(
            rank=4,
            lora_alpha=8,
            rank_pattern={"down_proj": 2, r"layers\.1\.self_attn\.q_proj": 16},
            alpha_pattern={"q_proj": 12, DOWN1: 1},
        )
    )
    assert [config.rank_of(name) for name in LAYERS] == [4, 16, 2]
    assert [config.scale_of(name) for name in LAYERS] == [12 / 4, 12 / 16, 1 / 2]


def test_a_root_can_take_the_place_of_the_rank() -> None:
    plain, root = (
        parse_adapter_config(make_config(rank=16, lora_alpha=8, use_rslora=flag))
        for flag in (False, True)
    )
    assert (plain.scale_of(Q0), root.scale_of(Q0)) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"peft_type": "IA3"}, "LORA"),
        ({"peft_type": None}, "LORA"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"bias": "lora_only"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": 1}, "init_lora_weights"),
        ({"layer_replication": [[0, 1]]}, "layers"),
        ({"trainable_token_indices": [1]}, "embeddings"),
        ({"target_parameters": ["experts.up"]}, "parameters"),
        ({"use_something_new": True}, "use_something_new"),
        ({"r": 0}, "r must be"),
        ({"r": True}, "r must be"),
        ({"r": "4"}, "r must be"),
        ({"r": 10**9}, "r must be"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"rank_pattern": {"q_proj": -1}}, "rank_pattern"),
        ({"rank_pattern": [1]}, "rank_pattern"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ({"target_modules": None}, "target_modules"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": 3}, "target_modules"),
        ({"target_modules": [1]}, "target_modules"),
        ({"target_modules": "(a+)+b"}, "target_modules"),
        ({"layers_to_transform": "1"}, "layers_to_transform"),
        ({"layers_to_transform": [True]}, "layers_to_transform"),
        ({"alora_invocation_tokens": []}, "alora_invocation_tokens"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens"),
        ({"alora_invocation_tokens": "go"}, "alora_invocation_tokens"),
    ],
)
def test_what_cannot_be_served_is_refused(changes: dict[str, object], word: str) -> None:
    entries = {**make_config(), **changes}
    with pytest.raises(ConfigError, match=word) as caught:
        parse_adapter_config(entries)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_something_new": False, "and_another": None, "more": {}},
        {"init_lora_weights": "gaussian"},
        {"base_model_name_or_path": "another/model", "revision": "main"},
        {"fan_in_fan_out": True, "task_type": None, "lora_dropout": 0.5},
    ],
)
def test_what_changes_nothing_is_taken(changes: dict[str, object]) -> None:
    assert parse_adapter_config({**make_config(), **changes}) == parse_adapter_config(
        make_config()
    )


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[]", "object"),
        (b" " * (2**20 + 1), "larger"),
        (json.dumps({"peft_type": "LORA", "r": 0}).encode(), "r must be"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes, word: str) -> None:
    (tmp_path / CONFIG_NAME).write_bytes(data)
    with pytest.raises(ConfigError, match=word) as caught:
        read_adapter_config(tmp_path)
    assert CONFIG_NAME in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=CONFIG_NAME):
        read_adapter_config(tmp_path)
