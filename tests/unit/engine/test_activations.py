from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from prefold.engine.activations import RowwiseActivation, replace_activations


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "name", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu2", "mish"]
)
def test_a_row_has_the_same_bits_in_every_batch(name: str, threads: int) -> None:
    torch.set_num_threads(threads)
    activation = RowwiseActivation(ACT2FN[name])
    for width in (49, 100, 1536):
        row = torch.randn(1, 1, width) * 3
        expected = activation(row)
        for count in (2, 16, 33, 96, 700):
            rows = activation(row.expand(1, count, width))
            assert torch.equal(rows, expected.expand_as(rows))


def test_values_are_those_of_the_activation_it_wraps() -> None:
    states = torch.randn(2, 5, 37)
    torch.testing.assert_close(RowwiseActivation(nn.SiLU())(states), nn.SiLU()(states))


def test_every_activation_of_a_model_is_replaced_once() -> None:
    shared = nn.GELU()
    row = nn.Sequential(shared, nn.Linear(2, 2), nn.SiLU())
    model = nn.ModuleDict({"a": shared, "b": row})

    assert replace_activations(model) == 2
    assert replace_activations(model) == 0
    assert model["a"] is row[0]
    assert isinstance(row[1], nn.Linear)


def test_an_activation_with_parameters_is_left() -> None:
    class Learned(nn.GELU):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    assert replace_activations(nn.Sequential(Learned())) == 0
