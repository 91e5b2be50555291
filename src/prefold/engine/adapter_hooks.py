"""Adapter hooks: let a model's linear layers add what adapters add, in steps that need it.

::

    rows of a step   |- base -|-- A: layer(x) + A(x) --|- B -|- base -|

Fused layers are handed the rows (see ``fused_adapters``). On other linear layers hang
hooks, but only while steps have rows of adapters: a step without any finds the model as it
is without adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from prefold.engine.adapted_rows import AdaptedRows
from prefold.engine.adapter import Adapter
from prefold.engine.native import HAS_KERNELS

if HAS_KERNELS:
    from prefold.engine.fused_adapters import FusedAdapters

_Hook = Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]


class AdapterHooks:
    """Adds to one model's layers. Owned by its runner; one thread."""

    __slots__ = ("_fused", "_handles", "_modules", "_rows")

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._handles: dict[str, RemovableHandle] = {}
        self._rows: tuple[AdaptedRows, ...] = ()
        self._fused = FusedAdapters(model) if HAS_KERNELS else None

    @contextmanager
    def over(self, rows: tuple[AdaptedRows, ...]) -> Iterator[None]:
        """Let rows pass their adapters in the forward pass inside."""
        if not rows:
            self._detach()
        self._rows = rows
        try:
            if rows:
                seen_to = frozenset() if self._fused is None else self._fused.give(rows)
                for each in rows:
                    self._attach(each.adapter, seen_to)
            yield
        finally:
            self._rows = ()
            if rows and self._fused is not None:
                self._fused.take_back()

    def _attach(self, adapter: Adapter, seen_to: AbstractSet[str]) -> None:
        for name in adapter.layers.keys() - self._handles.keys() - seen_to:
            hook = self._hook(name)
            self._handles[name] = self._modules[name].register_forward_hook(hook)

    def _detach(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        if self._fused is not None:
            self._fused.forget()

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
