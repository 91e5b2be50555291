"""Row probe: are a row's bits the same whatever rows are computed with it?

Exactness rests on how the linear algebra library treats batches of different sizes,
which no interface promises. So it is tried at start, on the model itself::

    rows      |-- 16 tokens --|-- the same 16 --|-- the same 16 --| ...

A batch of n rows holds the same short sequence n / 16 times, so every group of 16 rows
must come out with the bits of the first one computed alone. Run are the embedding, the
first decoder layer, with its attention, and the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.linear import turn_back
from prefold.engine.loading import LoadedModel
from prefold.engine.step_attention import attention_over

#: Length of the repeated sequence, and the least row multiple.
_PERIOD = 16

#: Rows of the batches that are compared.
_ROW_COUNTS = (16, 32, 48, 64, 128, 192, 512)

#: Row multiples that are tried, in this order.
_MULTIPLES = (16, 32, 64)

#: What the first decoder layer as a whole is called.
_LAYER = "the first decoder layer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """What a probe found.

    Attributes:
        is_exact: Whether rows had the same bits in every batch that was tried.
        row_multiple: What rows must be padded to a multiple of.
        detail: One sentence: what was tried, or the first module that differed.
    """

    is_exact: bool
    row_multiple: int
    detail: str


class _LayerDoneError(Exception):
    """Ends a forward pass behind the first decoder layer."""


@torch.inference_mode()
def probe_rows(loaded: LoadedModel) -> Exactness:
    """Try a model's first layer and head on batches of different sizes.

    Takes about the time of one layer and the head on 1,000 rows. Where linear layers
    give other bits in turned order, they are set to the plain one for good.
    """
    found = _probe_multiples(loaded)
    if not found.is_exact and turn_back(loaded.model):
        return _probe_multiples(loaded)
    return found


def _probe_multiples(loaded: LoadedModel) -> Exactness:
    first_difference = None
    for multiple in _MULTIPLES:
        difference = _find_difference(loaded, multiple)
        if difference is None:
            counts = ", ".join(str(n) for n in _ROW_COUNTS if n % multiple == 0)
            detail = (
                f"one layer and the head gave the same bits for batches of {counts} rows"
                f" with {torch.get_num_threads()} threads"
            )
            return Exactness(is_exact=True, row_multiple=multiple, detail=detail)
        first_difference = first_difference or difference
    return Exactness(
        is_exact=False,
        row_multiple=_MULTIPLES[0],
        detail=f"bit-exactness is unavailable: {first_difference}",
    )


def _find_difference(loaded: LoadedModel, multiple: int) -> str | None:
    """Name the first module whose rows differ between batches, or return None."""
    counts = [count for count in _ROW_COUNTS if count % multiple == 0]
    expected = _run_layer(loaded, counts[0])
    for count in counts[1:]:
        for name, rows in _run_layer(loaded, count).items():
            # A module inside a mixture's experts sees tokens in slices of its own.
            reference = expected.get(name)
            if reference is None or rows.shape[1:] != reference.shape[1:]:
                continue
            if not _repeats(rows, reference[:_PERIOD]):
                return f"{name} gives other bits for {count} rows than for {counts[0]}"
    # transformers leaves this call without annotations.
    head: nn.Module = loaded.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    period = expected[_LAYER][:_PERIOD]
    reference = head(period.repeat(counts[0] // _PERIOD, 1)[None])[0, :_PERIOD]
    for count in counts[1:]:
        if not _repeats(head(period.repeat(count // _PERIOD, 1)[None])[0], reference):
            return f"the head gives other bits for {count} rows than for {counts[0]}"
    return None


def _repeats(rows: torch.Tensor, period: torch.Tensor) -> bool:
    groups = rows.reshape(-1, *period.shape)
    return torch.equal(groups, period.expand_as(groups))


def _run_layer(loaded: LoadedModel, num_rows: int) -> dict[str, torch.Tensor]:
    """Return the output rows of the modules up to the first layer's end, in their order."""
    num_sequences = num_rows // _PERIOD
    store = KvStore(
        loaded.layout(_PERIOD, loaded.dtype),
        num_sequences,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    tokens = np.random.default_rng(0).integers(0, loaded.vocab_size, _PERIOD)
    slices = [
        SequenceSlice(
            token_ids=tokens, start=0, block_ids=np.array([block], np.int32), num_logits=0
        )
        for block in range(num_sequences)
    ]
    site = attention_over(store, loaded.num_heads)(slices, num_rows)
    # A model that is served with a few positions has no others.
    in_sequence = np.arange(_PERIOD) % loaded.max_model_len
    positions = np.tile(in_sequence, num_sequences) + loaded.position_offset
    with _recorded(loaded.model, num_rows) as found, suppress(_LayerDoneError):
        loaded.model(
            input_ids=torch.from_numpy(np.tile(tokens, num_sequences)).to(loaded.device)[
                None
            ],
            position_ids=torch.from_numpy(positions).to(loaded.device)[None],
            use_cache=False,
            attention_site=site,
        )
    return found


@contextmanager
def _recorded(model: nn.Module, num_rows: int) -> Iterator[dict[str, torch.Tensor]]:
    """Keep the output rows of every module until the first decoder layer is done."""
    found: dict[str, torch.Tensor] = {}
    first_layer = _first_layer(model)

    def keep(name: str, *, is_last: bool) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, tuple) and output:
                output = output[0]
            if isinstance(output, torch.Tensor):
                rows = output[0] if output.shape[:2] == (1, num_rows) else output
                if rows.ndim and len(rows) == num_rows:
                    found[name] = rows.clone()
            if is_last:
                raise _LayerDoneError

        return hook

    handles = [
        module.register_forward_hook(keep(name or "the model", is_last=False))
        for name, module in model.named_modules()
        if module is not first_layer
    ]
    handles.append(first_layer.register_forward_hook(keep(_LAYER, is_last=True)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _first_layer(model: nn.Module) -> nn.Module:
    """Return the module that holds the first attention and everything around it."""
    owners = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) > 0
    ]
    attentions = {
        name for name, module in model.named_modules() if vars(module).get("layer_idx") == 0
    }
    for name, layers in owners:
        if any(attention.startswith(f"{name}.0") for attention in attentions):
            return layers[0]
    return model
