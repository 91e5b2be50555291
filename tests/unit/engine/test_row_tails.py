from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from prefold.engine.row_probe import probe_rows
from prefold.engine.row_tails import TailWatch
from support.families import tiny_model
from support.kernels import needs_kernels

#: Numbers that torch takes at a time on the machine at hand.
AT_ONCE = {"AVX512": 32, "AVX2": 16}.get(torch.backends.cpu.get_cpu_capability(), 8)

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a function": torch.sigmoid,
    "a method": lambda x: x.sigmoid(),
    "in place": lambda x: x.clone().sigmoid_(),
    "a layer's": nn.functional.silu,
    "a module": nn.Softplus(),
}


def watch(numbers: torch.Tensor, num_rows: int) -> TailWatch:
    tails = TailWatch(num_rows)
    with tails:
        torch.sigmoid(numbers)
    return tails


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_every_way_to_call_an_uneven_function_is_seen(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with TailWatch(16) as tails:
        call(torch.ones(16, 3))
    assert tails.shares == {(3, AT_ONCE)}


def test_what_is_called_outside_and_what_is_even_is_not_noted() -> None:
    tails = TailWatch(16)
    torch.sigmoid(torch.ones(16, 3))
    with tails:
        torch.ones(16, 3).softmax(-1).exp().tanh()
    assert tails.shares == set()
    assert tails.allows(1)


def test_a_multiple_is_allowed_that_leaves_nothing_over() -> None:
    tails = watch(torch.ones(16, 8), 16)
    assert not tails.allows(1)
    assert tails.allows(AT_ONCE // 8)
    wide = watch(torch.ones(16, 2 * AT_ONCE), 16)
    assert wide.allows(1)
    # Of narrower numbers twice as many are taken.
    narrow = watch(torch.ones(16, 1).bfloat16(), 16)
    assert not narrow.allows(AT_ONCE)
    assert narrow.allows(2 * AT_ONCE)


def test_a_tensor_of_no_whole_rows_is_padded_for_the_worst() -> None:
    assert watch(torch.ones(5, 7), 16).shares == {(1, AT_ONCE)}


def test_leaving_nothing_over_gives_rows_the_same_bits() -> None:
    numbers = torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    whole = torch.sigmoid(numbers)
    multiple = AT_ONCE // 8
    padded = torch.cat([torch.sigmoid(part) for part in torch.split(numbers, multiple)])
    assert torch.equal(padded, whole)


@needs_kernels
def test_a_router_that_weighs_by_sigmoid_has_its_rows_padded() -> None:
    # Without it nothing needs padding, and a probe of 16 tokens sees no bit that differs.
    found = probe_rows(tiny_model("deepseek_v3"))
    assert found.is_exact
    assert found.row_multiple % (AT_ONCE // 8) == 0
    assert found.row_multiple > 1
    assert "2 layers" in found.detail
    assert probe_rows(tiny_model("deepseek_v2")).row_multiple == 1
