"""Native attention: a step's attention by the compiled kernel, straight from the blocks.

The rules for equal bits are the reference's: KV is read from the pool, also that of tokens
just computed, and reduced over partitions of ``PARTITION`` keys counted from position 0,
merged in order. Sequences that begin with the same blocks attend to them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from prefold.engine import _kernels
from prefold.engine.attention import AttentionCall
from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.usable_rows import UsableRows


class NativeAttention:
    """One step's attention: writes the new KV, then reads blocks. Lives for a step."""

    __slots__ = ("_pool", "_slices", "_step", "_store", "_usable")

    def __init__(
        self, store: KvStore, pool: _kernels.Pool, slices: Sequence[SequenceSlice]
    ) -> None:
        """Plan a step over a store's pool; rows behind the slices' are padding."""
        self._store = store
        self._pool = pool
        self._slices = slices
        self._usable = UsableRows(store)
        self._step = _kernels.Step(
            np.concatenate([piece.block_ids for piece in slices]),
            np.array([len(piece.block_ids) for piece in slices]),
            np.array([piece.start for piece in slices]),
            np.array([piece.num_tokens for piece in slices]),
            block_size=store.layout.block_size,
        )

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values, then attend to everything its rows see."""
        keys, values = self._store.keys(call.layer), self._store.values(call.layer)
        _, heads, num_rows, _ = call.query.shape
        out = torch.empty(1, num_rows, heads, values.geometry.size)
        self._pool.attend(
            self._step,
            # As capsules: made in a tenth of the time it takes to ask a tensor for one. The
            # function is documented, but left out of its module's list of exports.
            to_dlpack(_readable(call.query)),
            to_dlpack(_readable(call.key)),
            to_dlpack(_readable(call.value)),
            to_dlpack(out),
            key_offset=keys.offset,
            value_offset=values.offset,
            key_scale_offset=keys.scale_offset,
            value_scale_offset=values.scale_offset,
            scaling=call.scaling,
            window=call.window,
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks.float().contiguous(),
            num_threads=torch.get_num_threads(),
        )
        self._usable.note(call.layer, call.key, call.value)
        dtype = call.query.dtype
        return out if dtype is torch.float32 else out.to(dtype)

    def check_usable(self) -> None:
        """Refuse KV that is not numbers, when all layers have been written.

        Raises:
            UnusableStepError: Naming the slices that it belongs to.
        """
        self._usable.check(self._slices)


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return float32 with the last axis in one piece; mostly the tensor itself."""
    if tensor.dtype is not torch.float32:
        tensor = tensor.float()
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
