"""Row probe: are a row's bits the same whatever rows are computed with it?

Exactness rests on how libraries treat batches of different sizes, which no interface
promises. So it is tried at start, on the model itself::

    rows      |-- 16 tokens --|-- the same 16 --|-- the first of them --|

A batch of n rows holds the same short sequence n / 16 times, the last time perhaps not to
its end, so every row must come out with the bits that its token has in the first batch.
Run are the embedding, the first decoder layers, with their attention, and the head: as many
layers as it takes to have one of each kind, since many mixtures begin with a few dense
ones; once as they are served, and once part by part, to tell where a difference begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvStore
from prefold.engine.linear import turn_back
from prefold.engine.loading import LoadedModel
from prefold.engine.row_layers import find_uneven
from prefold.engine.row_tails import TailWatch
from prefold.engine.step_attention import attention_over
from prefold.errors import InvariantError

#: Length of the repeated sequence.
_PERIOD = 16

#: Rows of the batches that are compared; the first that is a multiple is the reference.
_ROW_COUNTS = (16, 32, 48, 64, 128, 192, 512)

#: The same without padding: also ones that leave something over, whatever is taken at a
#: time, and in each thread's share.
_UNPADDED_COUNTS = (16, 1, 2, 3, 5, 7, 8, 11, 13, 17, 31, 33, 47, 64, 101, 128, 301, 512)

#: Row multiples that are tried, in this order; without padding only where no module is
#: known to need it, and each only where functions leave nothing over.
_MULTIPLES = (16, 32, 64)

#: What the logits are called.
_HEAD = "the head"


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


@torch.inference_mode()
def probe_rows(loaded: LoadedModel) -> Exactness:
    """Try a model's first layers and head on batches of different sizes.

    Takes about the time of those layers and the head on 1,000 rows. Where linear layers
    give other bits in turned order, they are set to the plain one for good.
    """
    found = _probe_multiples(loaded)
    if not found.is_exact and turn_back(loaded.model):
        return _probe_multiples(loaded)
    return found


def _probe_multiples(loaded: LoadedModel) -> Exactness:
    first_difference = None
    unpadded = (1,) if find_uneven(loaded.model) is None else ()
    tails = TailWatch(_PERIOD)
    with tails:
        _run_layers(loaded, _PERIOD, by_part=False)
    for multiple in (*unpadded, *_MULTIPLES):
        if not tails.allows(multiple):
            continue
        counts = _counts_for(multiple)
        difference = _find_difference(loaded, counts)
        if difference is None:
            detail = (
                f"{_count_layers(loaded.model)} and the head gave the same bits for "
                f"batches of {', '.join(str(n) for n in counts)} rows"
                f" with {torch.get_num_threads()} threads"
            )
            return Exactness(is_exact=True, row_multiple=multiple, detail=detail)
        first_difference = first_difference or difference
    return Exactness(
        is_exact=False,
        row_multiple=_MULTIPLES[0],
        detail=f"bit-exactness is unavailable: {first_difference}",
    )


def _counts_for(multiple: int) -> tuple[int, ...]:
    counts = _UNPADDED_COUNTS if multiple == 1 else _ROW_COUNTS
    return tuple(count for count in counts if count % multiple == 0)


def _find_difference(loaded: LoadedModel, counts: Sequence[int]) -> str | None:
    """Name the first module whose rows differ between batches, or return None."""
    # What is fused runs part by part while its parts are looked at.
    for by_part in (True, False):
        expected = _run_layers(loaded, counts[0], by_part=by_part)
        for count in counts[1:]:
            for name, rows in _run_layers(loaded, count, by_part=by_part).items():
                # A module inside a mixture's experts sees tokens in an order of its own.
                reference = expected.get(name)
                if reference is None or rows.shape[1:] != reference.shape[1:]:
                    continue
                if not _repeats(rows, reference[:_PERIOD]):
                    return f"{name} gives other bits for {count} rows than for {counts[0]}"
    return None


def _repeats(rows: torch.Tensor, period: torch.Tensor) -> bool:
    num_whole = len(rows) // len(period)
    whole, rest = torch.split(rows, [num_whole * len(period), len(rows) % len(period)])
    groups = whole.reshape(-1, *period.shape)
    return torch.equal(groups, period.expand_as(groups)) and torch.equal(
        rest, period[: len(rest)]
    )


def _run_layers(
    loaded: LoadedModel, num_rows: int, *, by_part: bool
) -> dict[str, torch.Tensor]:
    """Return the output rows of the modules of a model's first layers, in order.

    Args:
        loaded: The model.
        num_rows: Of the batch.
        by_part: Otherwise only those of the decoder layer and the head.
    """
    num_sequences = -(-num_rows // _PERIOD)
    store = KvStore(
        loaded.layout(_PERIOD, loaded.dtype),
        num_sequences,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    period = np.random.default_rng(0).integers(0, loaded.vocab_size, _PERIOD)
    tokens = np.tile(period, num_sequences)[:num_rows]
    slices = [
        SequenceSlice(
            token_ids=tokens[block * _PERIOD : (block + 1) * _PERIOD],
            start=0,
            block_ids=np.array([block], np.int32),
            num_logits=0,
        )
        for block in range(num_sequences)
    ]
    site = attention_over(store, loaded.num_heads)(slices, num_rows)
    # A model that is served with a few positions has no others.
    in_sequence = np.arange(num_rows) % _PERIOD % loaded.max_model_len
    with (
        _first_layers(loaded.model),
        _recorded(loaded.model, num_rows, by_part=by_part) as found,
    ):
        output = loaded.model(
            input_ids=torch.from_numpy(tokens).to(loaded.device)[None],
            position_ids=torch.from_numpy(in_sequence + loaded.position_offset).to(
                loaded.device
            )[None],
            use_cache=False,
            logits_to_keep=torch.arange(num_rows, device=loaded.device),
            attention_site=site,
        )
    # Last, and with what the model does to its head's output.
    return {**found, _HEAD: output.logits[0]}


@contextmanager
def _first_layers(model: nn.Module) -> Iterator[None]:
    """Let a model have its first decoder layers only."""
    parent, name, layers = _find_layers(model)
    # All up to the last that is needed: a layer's place may say what kind it is.
    setattr(parent, name, nn.ModuleList(list(layers)[: _num_needed(layers)]))
    try:
        yield
    finally:
        setattr(parent, name, layers)


def _num_needed(layers: nn.ModuleList) -> int:
    """Return how many of the first layers have one of every kind, by their modules."""
    kinds = [
        tuple((name, type(module)) for name, module in layer.named_modules())
        for layer in layers
    ]
    return 1 + max(kinds.index(kind) for kind in set(kinds))


def _count_layers(model: nn.Module) -> str:
    """Return such as ``one layer``: how many are tried."""
    count = _num_needed(_find_layers(model)[2])
    return "one layer" if count == 1 else f"{count} layers"


@contextmanager
def _recorded(
    model: nn.Module, num_rows: int, *, by_part: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Keep the output rows of every module, or of layers only, but not of the head."""
    found: dict[str, torch.Tensor] = {}
    # A module's attributes are tensors or modules, mypy believes.
    find: Callable[[], nn.Module | None]
    find = model.get_output_embeddings  # type: ignore[assignment]
    head = find()
    _, _, layers = _find_layers(model)

    def keep(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, tuple) and output:
                output = output[0]
            if isinstance(output, torch.Tensor):
                rows = output[0] if output.shape[:2] == (1, num_rows) else output
                if rows.ndim and len(rows) == num_rows:
                    found[name] = rows.clone()

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if name and module is not head and (by_part or module in tuple(layers))
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _find_layers(model: nn.Module) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return where the list of decoder layers hangs, and the list."""
    attentions = {
        name for name, module in model.named_modules() if vars(module).get("layer_idx") == 0
    }
    for prefix, parent in model.named_modules():
        for name, child in parent.named_children():
            first = f"{prefix}.{name}.0".lstrip(".")
            if isinstance(child, nn.ModuleList) and any(
                each == first or each.startswith(f"{first}.") for each in attentions
            ):
                return parent, name, child
    raise InvariantError("no list of decoder layers was found")
