"""Adapter targets: the linear layers of a model that an adapter can add to.

Those that a forward pass calls exactly once, with all rows of the step: a layer inside a
mixture's experts sees some of them only, and the head those whose logits are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from prefold.engine.linear_kind import is_linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """Sizes of a linear layer."""

    in_features: int
    out_features: int


@contextmanager
def recorded_targets(model: nn.Module, num_rows: int) -> Iterator[dict[str, LinearShape]]:
    """Yield what becomes, by a forward pass inside, the layers that can be adapted.

    Args:
        model: With the layers that it is served with.
        num_rows: Of the one forward pass, in a batch of one.
    """
    # A module's attributes are tensors or modules, mypy believes.
    find: Callable[[], nn.Module | None]
    find = model.get_output_embeddings  # type: ignore[assignment]
    head = find()
    candidates = {
        name: module
        for name, module in model.named_modules()
        if module is not head
        and (is_linear(module) or isinstance(module, Conv1D))
        # A mixture's router keeps its panels in a layer that has no name elsewhere.
        and not name.endswith(".packed")
    }
    num_calls = dict.fromkeys(candidates, 0)
    found: dict[str, LinearShape] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(_module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
            num_calls[name] += 1
            shape = _shape_of(inputs, output, num_rows)
            if shape is None or num_calls[name] > 1:
                found.pop(name, None)
            else:
                found[name] = shape

        return hook

    handles = [m.register_forward_hook(keep(name)) for name, m in candidates.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _shape_of(
    inputs: tuple[object, ...], output: object, num_rows: int
) -> LinearShape | None:
    """Return the sizes of a layer, or None if its rows are not those of the step."""
    states = inputs[0] if len(inputs) == 1 else None
    if not isinstance(states, torch.Tensor) or not isinstance(output, torch.Tensor):
        return None
    shapes = states.shape[:-1], output.shape[:-1]
    if any(shape not in ((1, num_rows), (num_rows,)) for shape in shapes):
        return None
    return LinearShape(in_features=states.shape[-1], out_features=output.shape[-1])
