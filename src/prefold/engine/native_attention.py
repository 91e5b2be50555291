"""Native attention: a step's attention by the compiled kernel, straight from the blocks.

The rules for equal bits are the reference's: KV is read from the pool, also that of tokens
just computed, and reduced over partitions of ``PARTITION`` keys counted from position 0,
merged in order. Sequences that begin with the same blocks attend to them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from prefold.engine import _kernels
from prefold.engine.attention import AttentionCall
from prefold.engine.batch import SequenceSlice
from prefold.engine.fused_layer import StackRun
from prefold.engine.kv_store import KvStore
from prefold.engine.usable_rows import UsableRows


class NativeSites:
    """The compiled attention of layers over a store's pool, each made once.

    Args:
        store: What the layers read and write.
        kernel: Its name.
    """

    __slots__ = ("_made", "_of_stacks", "_pool", "keeps_numbers", "last_layer", "store")

    def __init__(self, store: KvStore, kernel: str) -> None:
        self.store = store
        usable = UsableRows(store)
        #: See ``UsableRows``.
        self.last_layer, self.keeps_numbers = usable.last_layer, usable.keeps_numbers
        self._pool = _kernels.Pool(
            store.numbers, block_numbers=store.block_numbers, kernel=kernel
        )
        self._made: dict[tuple[object, ...], _kernels.AttentionSite] = {}
        # With the calls, so that no other ones get their id.
        self._of_stacks: dict[
            int, tuple[tuple[AttentionCall, ...], list[_kernels.AttentionSite]]
        ] = {}

    def of_call(self, call: AttentionCall) -> _kernels.AttentionSite:
        """Return the attention of a layer that is called like this."""
        if call.sinks is not None:
            # They are the call's own, and may be other ones in the next call.
            return self._make(call)
        heads, kv_heads = call.query.shape[1], call.key.shape[1]
        key = call.layer, heads, kv_heads, call.scaling, call.window, call.softcap
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(call)
        return found

    def _make(self, call: AttentionCall) -> _kernels.AttentionSite:
        keys, values = self.store.keys(call.layer), self.store.values(call.layer)
        sinks = call.sinks
        return _kernels.AttentionSite(
            self._pool,
            heads=call.query.shape[1],
            kv_heads=call.key.shape[1],
            key_size=keys.geometry.size,
            value_size=values.geometry.size,
            key_offset=keys.offset,
            value_offset=values.offset,
            key_scale_offset=keys.scale_offset,
            value_scale_offset=values.scale_offset,
            scaling=call.scaling,
            window=call.window,
            softcap=call.softcap,
            sinks=None if sinks is None else sinks.detach().float().contiguous(),
        )

    def of_stack(self, calls: tuple[AttentionCall, ...]) -> list[_kernels.AttentionSite]:
        """Return the attention of all layers of a stack."""
        found = self._of_stacks.get(id(calls))
        if found is None:
            found = calls, [self.of_call(call) for call in calls]
            if not any(call.sinks is not None for call in calls):
                self._of_stacks[id(calls)] = found
        return found[1]


class NativeAttention:
    """One step's attention: writes the new KV, then reads blocks. Lives for a step."""

    __slots__ = ("_sites", "_slices", "_step", "_usable")

    def __init__(self, sites: NativeSites, slices: Sequence[SequenceSlice]) -> None:
        """Plan a step over a store's pool; rows behind the slices' are padding."""
        self._sites = sites
        self._slices = slices
        self._usable: UsableRows | None = None
        tables = [piece.block_ids for piece in slices]
        lengths, starts, counts = np.array(
            [
                [len(table) for table in tables],
                [piece.start for piece in slices],
                [piece.num_tokens for piece in slices],
            ],
            np.int64,
        )
        self._step = _kernels.Step(
            np.concatenate(tables),
            lengths,
            starts,
            counts,
            block_size=sites.store.layout.block_size,
        )

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values, then attend to everything its rows see."""
        dtype = call.query.dtype
        query, key, value = map(_readable, (call.query, call.key, call.value))
        _, heads, num_rows, _ = query.shape
        out = torch.empty(1, num_rows, heads, value.shape[-1])
        self._sites.of_call(call).attend(
            self._step, query, key, value, out, num_threads=torch.get_num_threads()
        )
        if call.layer == self._sites.last_layer and not (
            self._sites.keeps_numbers and _kernels.have_numbers(key, value)
        ):
            self._note(call.layer, key, value)
        return out if dtype is torch.float32 else out.to(dtype)

    def run_stack(self, run: StackRun) -> None:
        """Run layers with this step's attention, in one call."""
        given, rows = run.given, run.rows
        is_finite = run.stack.run(
            self._step,
            self._sites.of_stack(run.calls),
            given.states,
            given.cosine,
            given.sine,
            rows.query,
            rows.key,
            rows.value,
            torch.empty_like(rows.query),
            torch.empty_like(run.out),
            run.out,
            adapted=run.adapted,
            num_threads=torch.get_num_threads(),
        )
        if not (is_finite and self._sites.keeps_numbers):
            self._note(run.calls[-1].layer, rows.key_heads, rows.value_heads)

    def check_usable(self) -> None:
        """Refuse KV that is not numbers, when all layers have been written.

        Raises:
            UnusableStepError: Naming the slices that it belongs to.
        """
        if self._usable is not None:
            self._usable.check(self._slices)

    def _note(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        self._usable = UsableRows(self._sites.store)
        self._usable.note(layer, key, value)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return float32 with the last axis in one piece; mostly the tensor itself."""
    if tensor.dtype is not torch.float32:
        tensor = tensor.float()
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
