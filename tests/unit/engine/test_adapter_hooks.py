"""Adapter hooks and low-rank layers: which rows pass what, and what stays untouched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import nn

from prefold.engine.adapted_rows import find_adapted_rows
from prefold.engine.adapter import Adapter, AdapterHost
from prefold.engine.adapter_hooks import AdapterHooks
from prefold.engine.adapter_loading import build_adapter
from prefold.engine.adapter_targets import LinearShape, recorded_targets
from prefold.engine.adapter_weights import MatrixPair
from prefold.engine.batch import SequenceSlice
from prefold.engine.low_rank import LowRank, find_row_multiple

INPUTS, OUTPUTS = 6, 5
HOST = AdapterHost(
    linears={"0": LinearShape(in_features=INPUTS, out_features=OUTPUTS)},
    dtype=torch.float32,
    device=torch.device("cpu"),
)


def make_adapter(seed: int, scale: float = 2.0) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    pair = MatrixPair(
        down=torch.randn(2, INPUTS, generator=generator),
        up=torch.randn(OUTPUTS, 2, generator=generator),
        scale=scale,
    )
    return build_adapter({"0": pair}, None, HOST)


def make_slice(
    length: int, adapter: Adapter | None, *, start: int = 0, adapted_from: int = 0
) -> SequenceSlice:
    return SequenceSlice(
        token_ids=np.zeros(length, np.int64),
        start=start,
        block_ids=np.zeros(1, np.int32),
        num_logits=0,
        adapter=adapter,
        adapted_from=adapted_from,
    )


def row_by_row(slices: Sequence[SequenceSlice]) -> list[Adapter | None]:
    """Say for each row of a step what it passes."""
    return [
        piece.adapter if piece.start + offset >= piece.adapted_from else None
        for piece in slices
        for offset in range(piece.num_tokens)
    ]


def test_rows_are_found_as_one_by_one() -> None:
    choices: list[Adapter | None] = [None, make_adapter(1), make_adapter(2)]
    lengths = (1, 3)
    for names in product(choices, repeat=3):
        for length, start, first in product(lengths, (0, 2), (0, 3, 9)):
            slices = [
                make_slice(length, name, start=start, adapted_from=first) for name in names
            ]
            wanted = row_by_row(slices)
            found: list[Adapter | None] = [None] * len(wanted)
            rows = find_adapted_rows(slices)
            for each in rows:
                assert each.start < each.end
                for row in range(each.start, each.end):
                    assert found[row] is None, "a row passes two adapters"
                    found[row] = each.adapter
            assert found == wanted
            # Neighbours that pass the same are computed together.
            assert all(
                a.end < b.start or a.adapter is not b.adapter for a, b in pairwise(rows)
            )


def test_only_the_rows_of_an_adapter_change_and_by_its_products() -> None:
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    model.requires_grad_(requires_grad=False)
    one, two = make_adapter(1), make_adapter(2, scale=0.25)
    hooks = AdapterHooks(model)
    states = torch.randn(1, 7, INPUTS)
    plain = model(states)
    rows = find_adapted_rows([make_slice(2, None), make_slice(3, one), make_slice(2, two)])
    with hooks.over(rows):
        mixed = model(states)
    assert torch.equal(mixed[0, :2], plain[0, :2])
    for adapter, part in ((one, slice(2, 5)), (two, slice(5, 7))):
        wanted = plain[0, part].clone()
        adapter.layers["0"].add_to(wanted, states[0, part])
        assert torch.equal(mixed[0, part], wanted)
        assert not torch.allclose(wanted, plain[0, part])
    # Outside of a step with adapters, and in one that has none, nothing is added.
    assert torch.equal(model(states), plain)
    with hooks.over(()):
        assert torch.equal(model(states), plain)
        assert not model[0]._forward_hooks


def test_a_step_that_fails_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS))
    hooks = AdapterHooks(model)
    rows = find_adapted_rows([make_slice(2, make_adapter(1))])
    states = torch.randn(1, 2, INPUTS)
    plain = model(states)
    with pytest.raises(ZeroDivisionError), hooks.over(rows):
        raise ZeroDivisionError
    assert torch.equal(model(states), plain)


@pytest.mark.parametrize("multiple", [1, 16])
def test_low_rank_products_are_those_of_the_matrices(multiple: int) -> None:
    down, up = nn.Linear(INPUTS, 2, bias=False), nn.Linear(2, OUTPUTS, bias=False)
    layer = LowRank(down, up, 3.0, multiple)
    rows, outputs = torch.randn(5, INPUTS), torch.randn(5, OUTPUTS)
    wanted = outputs + 3.0 * rows @ down.weight.T @ up.weight.T
    with torch.inference_mode():
        layer.add_to(outputs, rows)
    assert torch.allclose(outputs, wanted, atol=1e-5)


class Uneven(nn.Linear):
    """Has other bits for fewer than 32 rows, or for odd ones."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out = super().forward(rows)
        return out + len(rows) % 32


def test_a_multiple_is_found_by_trying() -> None:
    up = nn.Linear(2, OUTPUTS, bias=False)
    plain = nn.Linear(INPUTS, 2, bias=False)
    assert find_row_multiple(plain, up, INPUTS) is not None
    assert find_row_multiple(Uneven(INPUTS, 2, bias=False), up, INPUTS) == 32


class Turned(nn.Linear):
    """Has other bits for each place of a row."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) + torch.arange(len(rows))[:, None]


def test_no_multiple_is_claimed_where_places_matter() -> None:
    up = nn.Linear(2, OUTPUTS, bias=False)
    assert find_row_multiple(Turned(INPUTS, 2, bias=False), up, INPUTS) is None


class Fork(nn.Module):
    """Layers that are called once, twice, on some rows, and never."""

    def __init__(self) -> None:
        super().__init__()
        self.once, self.twice = nn.Linear(4, 3), nn.Linear(4, 3)
        self.some, self.never = nn.Linear(4, 3), nn.Linear(4, 3)
        self.head = nn.Linear(4, 3)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, states: torch.Tensor) -> None:
        self.once(states)
        self.twice(states)
        self.twice(states)
        self.some(states[:, :2])
        self.head(states)


def test_layers_that_see_each_row_once_can_be_adapted() -> None:
    model = Fork()
    with recorded_targets(model, 5) as found:
        model(torch.zeros(1, 5, 4))
    assert found == {"once": LinearShape(in_features=4, out_features=3)}
    assert not any(module._forward_hooks for module in model.modules())


def test_an_adapter_does_not_fit_a_model_of_another_type() -> None:
    adapter = make_adapter(1)
    assert adapter.misfit(HOST) is None
    found = adapter.misfit(replace(HOST, dtype=torch.bfloat16))
    assert found is not None
    assert "bfloat16" in found
