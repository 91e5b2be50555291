"""Usable rows: whether the KV that a step wrote is numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.quantization import QUANTIZED, SCALE_DTYPE
from prefold.errors import UnusableStepError


class UsableRows:
    """Looks at what the last layer writes. Lives for a step."""

    __slots__ = ("_dtype", "_rows", "keeps_numbers", "last_layer")

    def __init__(self, store: KvStore) -> None:
        #: Whose rows tell of all layers: a token's NaN in one is in all later ones.
        self.last_layer = len(store.layout.layers) - 1
        self._dtype = store.dtype
        self._rows: torch.Tensor | None = None
        #: Whether every finite float32 is one as it is stored.
        self.keeps_numbers = self._dtype in (torch.float32, QUANTIZED)

    def note(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Look at a layer's keys and values, ``[1, heads, rows, size]``."""
        if layer != self.last_layer:
            return
        # As they are stored: a narrower type may have no such number. Whole numbers have a
        # scale, which any number can be brought to.
        dtype = SCALE_DTYPE if self._dtype is QUANTIZED else self._dtype
        sums = [new[0].to(dtype).float().sum(dim=(0, 2)) for new in (key, value)]
        self._rows = torch.isfinite(sums[0]) & torch.isfinite(sums[1])

    def check(self, slices: Sequence[SequenceSlice]) -> None:
        """Refuse a step with rows that are not numbers.

        Raises:
            UnusableStepError: Naming the slices that they belong to.
        """
        if self._rows is None or bool(self._rows.all()):
            return
        lengths = [piece.num_tokens for piece in slices]
        rows = torch.split(self._rows[: sum(lengths)], lengths)
        indices = tuple(i for i, each in enumerate(rows) if not bool(each.all()))
        if indices:
            raise UnusableStepError(indices)
