"""Adapter hooks: let a model's linear layers add what adapters add, in steps that need it.

::

    rows of a step   |- base -|-- A: layer(x) + A(x) --|- B -|- base -|

Hooks hang on layers only while steps have rows of adapters: a step without any finds the
model as it is without adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from prefold.engine.adapter import Adapter
from prefold.engine.batch import SequenceSlice

_Hook = Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedRows:
    """Rows ``start`` to ``end`` - 1 of a step, which pass an adapter."""

    adapter: Adapter
    start: int
    end: int


def find_adapted_rows(slices: Sequence[SequenceSlice]) -> tuple[AdaptedRows, ...]:
    """Return which rows of a step pass which adapter. Neighbours of one are together."""
    found: list[AdaptedRows] = []
    row = 0
    for piece in slices:
        end = row + piece.num_tokens
        adapter = piece.adapter
        start = row + max(0, piece.adapted_from - piece.start)
        row = end
        if adapter is None or start >= end:
            continue
        last = found[-1] if found else None
        if last is not None and last.adapter is adapter and last.end == start:
            found.pop()
            start = last.start
        found.append(AdaptedRows(adapter=adapter, start=start, end=end))
    return tuple(found)


class AdapterHooks:
    """Adds to one model's layers. Owned by its runner; one thread."""

    __slots__ = ("_handles", "_modules", "_rows")

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._handles: dict[str, RemovableHandle] = {}
        self._rows: tuple[AdaptedRows, ...] = ()

    @contextmanager
    def over(self, rows: tuple[AdaptedRows, ...]) -> Iterator[None]:
        """Let rows pass their adapters in the forward pass inside."""
        if not rows:
            self._detach()
        for each in rows:
            self._attach(each.adapter)
        self._rows = rows
        try:
            yield
        finally:
            self._rows = ()

    def _attach(self, adapter: Adapter) -> None:
        for name in adapter.layers.keys() - self._handles.keys():
            hook = self._hook(name)
            self._handles[name] = self._modules[name].register_forward_hook(hook)

    def _detach(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> _Hook:
        def add(
            _module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
        ) -> None:
            rows = inputs[0].flatten(end_dim=-2)
            outputs = output.view(-1, output.shape[-1])
            for each in self._rows:
                layer = each.adapter.layers.get(name)
                if layer is not None:
                    layer.add_to(
                        outputs[each.start : each.end], rows[each.start : each.end]
                    )

        return add
