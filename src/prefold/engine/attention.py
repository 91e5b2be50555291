"""Reference attention: plain torch over the block pool, and the oracle of the tests.

Keys and values are always read from the pool, also those of tokens just computed, so
a token sees the same numbers whether its prefix was computed in this step or cached.

Every row's result has the same bits for any chunking, batch and thread count:

1. the maximum over all keys is exact in any order;
2. ``2 ** (score - maximum)``, its sum and its product with the values are computed for
   each partition of ``PARTITION`` keys in a fixed shape;
3. partitions are added one after another, starting from zero. A partition hidden from
   a row adds exact zeros, so it does not matter whether it was computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from prefold.engine.attention_plan import (
    ROW_MULTIPLE,
    KeyRead,
    RowGroup,
    plan_reads,
    slots_of,
)
from prefold.engine.batch import SequenceSlice
from prefold.engine.kv_store import KvPlane, KvStore, RowGeometry
from prefold.engine.quantization import quantize
from prefold.engine.thread_share import ScratchBuffers, even_length
from prefold.engine.usable_rows import UsableRows
from prefold.errors import InvariantError

#: The name under which transformers finds ``attend_to_site``.
ATTENTION_NAME = "prefold"

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """What one layer hands to its attention.

    Attributes:
        layer: The layer's index.
        query: ``[1, heads, rows, key_size]``, as are ``key`` and ``value`` with their
            own numbers of heads and sizes.
        scaling: Factor on the scores.
        window: How many keys a row sees, itself included.
        softcap: Scores become ``softcap * tanh(score / softcap)``.
        sinks: One score per query head that takes part in the softmax and has no value.
        is_causal: What the layer says of itself.
        other_keywords: Names of keywords that the function does not know and that hold
            something.
    """

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None
    is_causal: bool
    other_keywords: tuple[str, ...]


@runtime_checkable
class AttentionSite(Protocol):
    """Where a forward pass's attention happens; travels with it as a keyword."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return ``[1, rows, heads, value_size]``."""
        ...


#: Keywords of a forward pass that say nothing about the attention's result here: there
#: is no dropout at inference, positions are in the query already, and no cache object.
_NEUTRAL_KEYWORDS = frozenset(
    {
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)


def attend_to_site(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **keywords: object,
) -> tuple[torch.Tensor, None]:
    """Pass a layer's attention to the site that came with the forward pass.

    Registered with transformers, whose models pass unknown keywords of a forward
    pass on to every layer's attention; so the step needs no global state.
    """
    site = keywords.pop("attention_site", None)
    if not isinstance(site, AttentionSite) or attention_mask is not None:
        raise InvariantError("the prefold attention runs in steps without a mask only")
    facts = vars(module)
    scaling = _number(keywords.pop("scaling", None))
    window = _number(keywords.pop("sliding_window", None))
    sinks = keywords.pop("s_aux", None)
    call = AttentionCall(
        layer=int(facts["layer_idx"]),
        query=query,
        key=key,
        value=value,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=None if window is None else int(window),
        softcap=_number(keywords.pop("softcap", None)),
        sinks=sinks if isinstance(sinks, torch.Tensor) else None,
        is_causal=False not in (keywords.get("is_causal"), facts.get("is_causal")),
        other_keywords=tuple(
            sorted(
                name
                for name, value in keywords.items()
                if value is not None and name not in _NEUTRAL_KEYWORDS
            )
        ),
    )
    return site.attend(call), None


def _number(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise InvariantError(f"a layer passed a {type(value).__name__} for a number")
    return value


class PagedAttention:
    """One step's attention: writes the new KV, then reads blocks. Lives for a step."""

    __slots__ = (
        "_kernel",
        "_num_heads",
        "_reads",
        "_rows",
        "_scratch",
        "_slices",
        "_store",
        "_usable",
        "_write_slots",
    )

    def __init__(
        self,
        store: KvStore,
        slices: Sequence[SequenceSlice],
        *,
        num_rows: int,
        num_heads: int,
    ) -> None:
        """Plan a step of ``num_rows`` rows, those behind the slices being padding."""
        self._store = store
        self._slices = slices
        self._num_heads = num_heads
        block_size = store.layout.block_size
        slots = np.full(num_rows, store.scratch_block * block_size, dtype=np.int64)
        row = 0
        for piece in slices:
            positions = np.arange(piece.start, piece.end)
            slots[row : row + len(positions)] = slots_of(piece, positions, block_size)
            row += len(positions)
        self._write_slots = torch.from_numpy(slots).to(store.device)
        # Layers mostly share a window and a geometry; each is worked out once a step.
        self._reads: dict[int | None, tuple[KeyRead, ...]] = {}
        self._usable = UsableRows(store)
        self._scratch = ScratchBuffers()
        self._kernel = GroupKernel(self._scratch)
        self._rows: dict[tuple[int, RowGeometry], torch.Tensor] = {}

    def check_usable(self) -> None:
        """Refuse KV that is not numbers, when all layers have been written.

        Raises:
            UnusableStepError: Naming the slices that it belongs to.
        """
        self._usable.check(self._slices)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Write the call's keys and values, then attend to everything its rows see."""
        keys, values = self._store.keys(call.layer), self._store.values(call.layer)
        for plane, new in ((keys, call.key), (values, call.value)):
            self._write(plane, new[0].transpose(0, 1))
        self._usable.note(call.layer, call.key, call.value)
        heads, num_rows = call.query.shape[1:3]
        groups = heads // keys.geometry.num_heads
        # Scores end up in base 2; a soft cap comes in between, so it brings the factor.
        scaling = call.scaling * (_LOG2_E if call.softcap is None else 1 / call.softcap)
        query = call.query[0].transpose(0, 1).float() * scaling
        query = query.view(num_rows, keys.geometry.num_heads, groups, -1)
        result = query.new_zeros(num_rows, heads, values.geometry.size)
        for read in self._plan(call.window):
            read_keys, read_values = (
                self._fetch(read, keys, "keys"),
                self._fetch(read, values, "values"),
            )
            for group in read.groups:
                pairs = slice(group.first_pair, group.first_pair + len(group.owners))
                out = self._kernel.attend(
                    query, read_keys[pairs], read_values[pairs], group, call
                )
                real = group.num_real_rows
                result.index_copy_(
                    0, group.rows[:real], out.reshape(-1, *result.shape[1:])[:real]
                )
        return result.to(call.query.dtype)[None]

    def _plan(self, window: int | None) -> tuple[KeyRead, ...]:
        if window not in self._reads:
            reads = plan_reads(
                self._slices,
                block_size=self._store.layout.block_size,
                num_heads=self._num_heads,
                window=window,
            )
            self._reads[window] = tuple(read.on(self._store.device) for read in reads)
        return self._reads[window]

    def _write(self, plane: KvPlane, new: torch.Tensor) -> None:
        """Put ``[rows, heads, size]`` into the slots of the step's rows."""
        if plane.scales is not None:
            new, scales = quantize(new)
            block_size = self._store.layout.block_size
            slots = self._write_slots
            # Padding rows share one slot, whose scale is then anyone's.
            plane.scales[slots // block_size, slots % block_size] = scales
        index = self._row_index(self._write_slots, plane)
        rows = new.reshape(-1, plane.rows.shape[1]).to(plane.rows.dtype)
        plane.rows.index_copy_(0, index, rows)

    def _fetch(self, read: KeyRead, plane: KvPlane, buffer: str) -> torch.Tensor:
        """Copy keys or values out of the pool, ``[pairs, heads, PARTITION, size]``."""
        index = self._row_index(read.slots, plane)
        unit = plane.rows.shape[1]
        # Fresh memory for every layer would cost more, in page faults, than the copy.
        rows = self._scratch.take(buffer, index.numel() * unit, plane.rows).view(-1, unit)
        torch.index_select(plane.rows, 0, index, out=rows)
        pairs, keys = read.slots.shape
        stored = rows.view(pairs, plane.geometry.num_heads, keys, plane.geometry.size)
        if plane.scales is None:
            return stored.float()
        block_size = self._store.layout.block_size
        scales = plane.scales[read.slots // block_size, read.slots % block_size]
        return stored.float().mul_(scales.transpose(1, 2)[..., None])

    def _row_index(self, slots: torch.Tensor, plane: KvPlane) -> torch.Tensor:
        known = self._rows.get((id(slots), plane.geometry))
        if known is None:
            known = self._store.rows_of(slots, plane.geometry)
            if slots.ndim == 2:
                known = known.transpose(1, 2)
            known = known.reshape(-1)
            self._rows[id(slots), plane.geometry] = known
        return known


class GroupKernel:
    """Attention of one group of rows after another; its buffers are used again and again.

    Letters in the shapes: p pairs, o owners, h key-value heads, k keys of a partition,
    d sizes, m = rows x query heads that share a key-value head, padded.
    """

    __slots__ = ("_scratch",)

    def __init__(self, scratch: ScratchBuffers) -> None:
        self._scratch = scratch

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        group: RowGroup,
        call: AttentionCall,
    ) -> torch.Tensor:
        """Return ``[owners, rows, kv heads, query heads a kv head, value_size]``.

        Args:
            query: ``[packed rows, kv heads, query heads a kv head, size]``, scaled so
                that scores are logarithms to base 2.
            keys: ``phkd``.
            values: ``phkd``.
            group: The rows, and the pairs that ``keys`` holds.
            call: For soft cap and sinks.
        """
        num_pairs, heads, num_keys, _ = keys.shape
        num_owners, num_rows = len(group.bag_starts), group.num_rows
        shared = query.shape[2]
        rows = _padded_rows(query, group)  # ohmd
        width = rows.shape[2]
        rows = rows.index_select(0, group.owners).flatten(0, 1)

        length = num_pairs * heads * width * num_keys
        even = even_length(length, torch.get_num_threads())
        buffer = self._scratch.take("scores", even, query)
        scores = buffer[:length].view(num_pairs * heads, width, num_keys)
        torch.bmm(rows, keys.flatten(0, 1).transpose(1, 2), out=scores)
        scores = scores.view(num_pairs, heads, width, num_keys)
        if call.softcap is not None:
            scores.tanh_().mul_(call.softcap * _LOG2_E)
        by_row = scores.view(num_pairs, heads, num_rows, width // num_rows, num_keys)
        by_row[: len(group.head_bias)] += group.head_bias
        by_row[num_pairs - len(group.tail_bias) :] += group.tail_bias

        # One more pair, of nothing, fills the table where an owner has fewer pairs.
        highest = scores.new_full((num_pairs + 1, heads, width), -torch.inf)
        torch.amax(scores, -1, out=highest[:num_pairs])
        table = group.pairs_of_owner
        top = (
            highest.index_select(0, table.flatten())
            .view(*table.shape, heads, width)
            .amax(1)
        )
        sinks = None if call.sinks is None else _sink_rows(call.sinks, top, num_rows)
        if sinks is not None:
            top = torch.maximum(top, sinks)

        scores.sub_(top.index_select(0, group.owners)[..., None])
        # Base 2, because torch's ``exp`` is several times slower for -inf and for
        # results that vanish; over the even length, because its last bits vary otherwise.
        buffer.exp2_()
        total = _merge(scores.sum(-1), group)
        if sinks is not None:
            total += (sinks - top).exp2_()
        parts = torch.bmm(scores.flatten(0, 1), values.flatten(0, 1))
        result = _merge(parts.view(num_pairs, heads, width, -1), group)
        result = result.div_(total[..., None])[:, :, : num_rows * shared]
        return result.view(num_owners, heads, num_rows, shared, -1).transpose(1, 2)


def _padded_rows(query: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """Pick the group's query rows, ``ohmd``, m filled up with zeros to the row multiple."""
    heads, shared, size = query.shape[1:]
    num_owners = len(group.bag_starts)
    rows = query.index_select(0, group.rows).view(num_owners, -1, heads, shared, size)
    rows = rows.transpose(1, 2).reshape(num_owners, heads, -1, size)
    missing = -rows.shape[2] % ROW_MULTIPLE
    if missing == 0:
        return rows
    return torch.cat((rows, rows.new_zeros(num_owners, heads, missing, size)), dim=2)


def _merge(parts: torch.Tensor, group: RowGroup) -> torch.Tensor:
    """Add every owner's parts, ``p...`` to ``o...``, one after another in pair order."""
    # A bag adds its rows strictly in order, unlike ``sum``, and takes one call for any
    # number of them, unlike a loop.
    flat = parts.view(len(parts), -1)
    merged: torch.Tensor = torch.embedding_bag(
        flat, group.bag_pairs, group.bag_starts, mode=0
    )[0]
    return merged.view(-1, *parts.shape[1:])


def _sink_rows(sinks: torch.Tensor, top: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Spread one score per query head over the rows of ``top``, in base 2."""
    heads = top.shape[1]
    shared = sinks.numel() // heads
    rows = sinks.float().mul(_LOG2_E).view(1, heads, 1, shared)
    spread = torch.zeros_like(top)
    spread[:, :, : num_rows * shared] = rows.expand(1, heads, num_rows, shared).reshape(
        1, heads, -1
    )
    return spread
