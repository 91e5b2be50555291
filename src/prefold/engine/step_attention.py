"""Step attention: opens, for every step, the attention that a store is laid out for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from prefold.blocks.layout import KvOrder
from prefold.engine.attention import AttentionCall, PagedAttention
from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.native import HAS_KERNELS, NATIVE, kernel_name
from prefold.errors import InvariantError

if HAS_KERNELS:
    from prefold.engine.native_attention import NativeAttention, NativeSites


class StepAttention(Protocol):
    """The attention of one step; an ``AttentionSite``."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values, then attend; ``[1, rows, heads, size]``."""
        ...

    def check_usable(self) -> None:
        """Refuse KV that is not numbers, when all layers have been written.

        Raises:
            UnusableStepError: Naming the slices that it belongs to.
        """
        ...


#: Makes a step's attention of its slices and its number of rows, padding included.
OpenAttention = Callable[[Sequence[SequenceSlice], int], StepAttention]


def order_for(attention: str) -> KvOrder:
    """Return the order of numbers that an implementation reads."""
    return KvOrder.DIMENSION_MAJOR_KEYS if attention == NATIVE else KvOrder.TOKEN_MAJOR


def attention_over(store: KvStore, num_heads: int) -> OpenAttention:
    """Return what opens steps over a store; its memory is used by one step at a time.

    Raises:
        ConfigError: ``PREFOLD_KERNEL`` names no kernel of this machine.
    """
    if store.layout.order is KvOrder.TOKEN_MAJOR:

        def open_reference(
            slices: Sequence[SequenceSlice], num_rows: int
        ) -> PagedAttention:
            return PagedAttention(store, slices, num_rows=num_rows, num_heads=num_heads)

        return open_reference

    if not HAS_KERNELS:
        raise InvariantError("the store is laid out for kernels that were not built")
    sites = NativeSites(store, kernel_name())

    def open_native(slices: Sequence[SequenceSlice], _num_rows: int) -> NativeAttention:
        return NativeAttention(sites, slices)

    return open_native
