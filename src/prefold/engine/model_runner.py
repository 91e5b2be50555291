"""Model runner: a step plan in, logits out.

The whole ``ForCausalLM`` is called with the step's tokens packed into one row::

    slices      |-- A: 5 --|- B: 1 -|--- C: 7 ---| padding |      [1, 16]
    positions    3 4 5 6 7 |   40   | 0 1 2 ..   | 0 0 0   |
    logits                ^         ^            ^                only where wanted

Rows are padded to a multiple where a probe found it needed: a matrix library takes another
kernel, with other bits, for a few rows; the same holds for the rows that the head gets.
Padding writes its KV to the scratch block and its results are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from prefold.blocks.table import BlockCopy
from prefold.engine.adapted_rows import find_adapted_rows
from prefold.engine.adapter_hooks import AdapterHooks
from prefold.engine.batch import StepPlan
from prefold.engine.kv_store import KvStore
from prefold.engine.loading import LoadedModel
from prefold.engine.model_inputs import InputRows
from prefold.engine.step_attention import attention_over
from prefold.errors import InvariantError

#: What rows are padded to a multiple of unless a probe has found another number.
DEFAULT_ROW_MULTIPLE = 16


class ModelRunner:
    """A model over a KV store; used by one thread.

    Args:
        loaded: The model.
        store: Made for it; the runner becomes its only user.
        row_multiple: Rows of a batch, and of the head's input, are padded to it.
    """

    __slots__ = ("_adapters", "_loaded", "_open_attention", "_row_multiple", "_store")

    def __init__(
        self,
        loaded: LoadedModel,
        store: KvStore,
        *,
        row_multiple: int = DEFAULT_ROW_MULTIPLE,
    ) -> None:
        if store.layout.layers != loaded.layer_shapes:
            raise InvariantError("the KV store was made for another model")
        self._loaded = loaded
        self._store = store
        self._open_attention = attention_over(store, loaded.num_heads)
        self._row_multiple = row_multiple
        self._adapters = AdapterHooks(loaded.model)

    @property
    def store(self) -> KvStore:
        return self._store

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first positions of blocks into others, at once and in order."""
        self._store.copy_blocks(copies)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Carry out a plan; return logits, float32 ``[sum of num_logits, vocab]``.

        Raises:
            UnusableStepError: Some of the KV it wrote is not numbers.
        """
        self._store.copy_blocks(plan.copies)
        num_tokens = sum(piece.num_tokens for piece in plan.slices)
        num_rows = _padded(num_tokens, self._row_multiple)
        rows = InputRows(plan.slices, num_rows, self._loaded.position_offset)
        wanted = []
        row = 0
        for piece in plan.slices:
            end = row + piece.num_tokens
            wanted.append(np.arange(end - piece.num_logits, end))
            row = end
        logit_rows = np.concatenate(wanted)
        head_rows = np.zeros(_padded(len(logit_rows), self._row_multiple), dtype=np.int64)
        head_rows[: len(logit_rows)] = logit_rows
        attention = self._open_attention(plan.slices, num_rows)
        device = self._store.device
        with self._adapters.over(find_adapted_rows(plan.slices)):
            output = self._loaded.model(
                **rows.keywords(self._loaded.model, device),
                use_cache=False,
                logits_to_keep=torch.from_numpy(head_rows).to(device),
                attention_site=attention,
            )
        attention.check_usable()
        logits: torch.Tensor = output.logits
        return logits[0, : len(logit_rows)].float()


def _padded(num_rows: int, multiple: int) -> int:
    return -(-num_rows // multiple) * multiple
