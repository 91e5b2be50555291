from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from prefold.engine.activations import (
    NativeActivation,
    RowwiseActivation,
    describe_activations,
    replace_activations,
)
from prefold.engine.native import HAS_KERNELS, kernel_name
from support.kernels import KERNELS


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


NATIVE = pytest.mark.skipif(not HAS_KERNELS, reason="the kernels were not built")
NATIVE_NAMES = ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu"]


def native(name: str) -> nn.Module:
    model = nn.Sequential(ACT2FN[name])
    replace_activations(model, is_native=True)
    assert isinstance(model[0], NativeActivation)
    return model[0]


@NATIVE
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NATIVE_NAMES)
def test_compiled_values_are_near_float64(
    name: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFOLD_KERNEL", kernel)
    states = torch.cat([torch.linspace(-30, 30, 20_001), torch.linspace(-1e-3, 1e-3, 99)])
    exact = ACT2FN[name](states.double())
    # Results far below the inputs are differences of larger numbers in torch as well.
    error = (native(name)(states) - exact).abs() / (
        exact.abs() + 1e-6 * states.abs() + 1e-30
    )
    assert error.max() < 2e-6
    special = torch.tensor([float("nan"), float("inf"), 0.0])
    assert torch.equal(native(name)(special).isnan(), torch.tensor([True, False, False]))


@NATIVE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", NATIVE_NAMES)
def test_a_number_has_the_same_compiled_bits_wherever_it_lies(
    name: str, threads: int, dtype: torch.dtype
) -> None:
    torch.set_num_threads(threads)
    activation = native(name)
    numbers = (torch.randn(65_537) * 3).to(dtype)
    expected = activation(numbers)
    # Each number is at some time among those that fill no vector.
    for count in (*range(1, 100), 511, 513, 40_001):
        assert torch.equal(activation(numbers[:count]), expected[:count])
    assert all(torch.equal(activation(numbers[i]), expected[i]) for i in range(100))


@NATIVE
def test_other_types_are_left_to_torch() -> None:
    # Of a few numbers torch computes those that fill no vector by another function.
    states = torch.randn(4096, dtype=torch.float64)
    assert torch.equal(native("silu")(states), nn.functional.silu(states))


@NATIVE
def test_the_numerics_name_what_is_there() -> None:
    both = nn.Sequential(nn.SiLU(), nn.ReLU())
    replace_activations(both, is_native=True)
    name = f"cpu-{kernel_name()}-1"
    assert describe_activations(both) == f"{name}+even-shares"
    assert describe_activations(both[:1]) == name
    assert describe_activations(nn.Sequential()) == "even-shares"


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
