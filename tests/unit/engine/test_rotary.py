from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from prefold.engine.rotary import TabulatedRotary, fix_rotary
from prefold.errors import ConfigError

STATES = torch.zeros(1, 1, 1)


def make_llama(**rope: object) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=64,
        rope_parameters={"rope_theta": 100.0, "rope_type": "default", **rope},
    )
    return LlamaRotaryEmbedding(config)


def make_longrope() -> Phi3RotaryEmbedding:
    config = Phi3Config(
        hidden_size=32,
        num_attention_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "long_factor": [4.0, 3.0, 2.5, 2.0],
            "short_factor": [1.0, 1.1, 1.2, 1.3],
        },
    )
    return Phi3RotaryEmbedding(config)


def test_answers_are_those_of_the_module() -> None:
    rotary = make_llama()
    fixed = TabulatedRotary(rotary, STATES, 64)
    positions = torch.tensor([[5, 0, 63, 5]])
    for got, expected in zip(
        fixed(STATES, positions), rotary(STATES, positions), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_do_not_follow_the_longest_neighbour(kind: str) -> None:
    def make() -> nn.Module:
        return (
            make_longrope()
            if kind == "longrope"
            else make_llama(rope_type=kind, factor=2.0)
        )

    rotary, fixed = make(), TabulatedRotary(make(), STATES, 128)
    short, long = torch.tensor([[7, 3]]), torch.tensor([[7, 127]])

    # The module itself lets a neighbour at position 127 change position 7.
    assert not torch.equal(rotary(STATES, short)[0][0, 0], rotary(STATES, long)[0][0, 0])
    assert torch.equal(fixed(STATES, short)[0][0, 0], fixed(STATES, long)[0][0, 0])
    torch.testing.assert_close(fixed(STATES, long)[0], make()(STATES, long)[0])


def test_short_sequences_only_get_the_short_frequencies() -> None:
    short = torch.tensor([[7, 3]])
    fixed = TabulatedRotary(make_longrope(), STATES, 32)
    torch.testing.assert_close(fixed(STATES, short)[0], make_longrope()(STATES, short)[0])


def test_layer_types_keep_their_own_answers() -> None:
    rotary = Gemma3RotaryEmbedding(
        Gemma3TextConfig(
            hidden_size=32, num_attention_heads=4, head_dim=8, num_hidden_layers=6,
            max_position_embeddings=64,
        )
    )  # fmt: skip
    fixed = TabulatedRotary(rotary, STATES, 64)
    positions = torch.arange(40)[None]
    for layer_type in ("full_attention", "sliding_attention"):
        expected = rotary(STATES, positions, layer_type=layer_type)
        torch.testing.assert_close(
            fixed(STATES, positions, layer_type=layer_type), expected
        )


def test_a_module_is_replaced_wherever_it_stands_and_once() -> None:
    rotary = make_llama()
    row = nn.ModuleList([rotary, nn.Linear(2, 2)])
    model = nn.ModuleDict({"a": rotary, "b": row})

    assert fix_rotary(model, 32, torch.float32) == 1
    assert fix_rotary(model, 32, torch.float32) == 0
    assert model["a"] is row[0]


def test_an_answer_that_is_no_table_is_refused() -> None:
    class OddRotaryEmbedding(nn.Module):
        def forward(
            self, states: torch.Tensor, _position_ids: torch.Tensor
        ) -> torch.Tensor:
            return states

    with pytest.raises(ConfigError, match="OddRotaryEmbedding"):
        TabulatedRotary(OddRotaryEmbedding(), STATES, 8)
