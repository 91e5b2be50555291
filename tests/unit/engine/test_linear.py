from __future__ import annotations

import pytest
import torch
from torch import nn

from prefold.engine.linear import FEW_ROWS, TurnedLinear, replace_linears


@pytest.mark.parametrize("count", [1, 16, FEW_ROWS, FEW_ROWS + 16])
@pytest.mark.parametrize("bias", ["biased", "unbiased"])
@torch.inference_mode()
def test_its_result_has_no_gaps(count: int, bias: str) -> None:
    layer = TurnedLinear(nn.Linear(64, 172, bias=bias == "biased"))
    assert layer(torch.randn(1, count, 64)).is_contiguous()


@pytest.mark.parametrize("count", [1, FEW_ROWS, FEW_ROWS + 1])
def test_values_are_those_of_the_layer_it_is_made_of(count: int) -> None:
    inner = nn.Linear(37, 11)
    states = torch.randn(1, count, 37)
    torch.testing.assert_close(TurnedLinear(inner)(states), inner(states))


def test_every_linear_layer_is_replaced_once_and_keeps_its_parameters() -> None:
    shared = nn.Linear(2, 2)
    row = nn.Sequential(shared, nn.GELU(), nn.Linear(2, 3, bias=False))
    model = nn.ModuleDict({"a": shared, "b": row})
    before = dict(model.named_parameters())

    assert replace_linears(model) == 2
    assert replace_linears(model) == 0
    assert model["a"] is row[0]
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is parameter for name, parameter in before.items())


def test_a_layer_of_a_derived_class_is_left() -> None:
    class Adapted(nn.Linear):
        pass

    assert replace_linears(nn.Sequential(Adapted(2, 2))) == 0


def test_a_layer_with_hooks_is_left() -> None:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    assert replace_linears(nn.Sequential(layer)) == 0
