"""Attention plan: which query rows of a step read which partitions of which keys.

The key axis of a sequence is cut at multiples of ``PARTITION`` counted from
position 0, never from where a window, a chunk or a cached prefix begins::

    position    0        256       512       768
    partition   |   0     |    1    |    2    |  ..
    row at 600  |---------|---------|----|            reads 0, 1 and part of 2

A row's result is the sum over its partitions in order. Each is computed in one
fixed shape, so the sum has the same bits whichever rows are computed with it.

Rows are grouped: all sequences with one new token make one group, which needs the
same number of calls for any context length; longer slices are cut into tiles of
rows. A *pair* is one partition as read by one owner, a sequence or a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from prefold.engine.batch import SequenceSlice

#: Keys in one partition. Part of the numerics: another length gives other bits.
PARTITION = 256

#: Query rows are padded to a multiple of this: below four rows the matrix library
#: takes another kernel, with other bits.
ROW_MULTIPLE = 16

#: Most query rows of one tile: its scores stay in the processor's cache, and few of
#: the keys behind the diagonal are computed in vain.
_MAX_TILE_ROWS = 64

#: Scores of one tile; tiles of very long contexts get fewer rows instead.
_TILE_SCORES = 1 << 22

#: Keys that the sequences of one group read together, so that copies of their KV
#: stay within about half a GiB for a model of common size.
_GROUP_KEYS = 1 << 17

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Query rows that are computed in one batch.

    Attributes:
        rows: Rows of the packed batch, ``[owners * num_rows]``; may repeat at the end.
        num_real_rows: How many of them are wanted.
        num_rows: Query rows an owner has.
        first_pair: The group's first pair in its ``KeyRead``.
        owners: For every pair its owner, ascending partitions within an owner.
        pairs_of_owner: ``[owners, most pairs]``; the number of pairs stands for none.
        bag_pairs: All pairs, owner after owner, each owner's in ascending partitions.
        bag_starts: ``[owners]``, where in ``bag_pairs`` each owner begins.
        head_bias: 0 or -inf, ``[n, 1, num_rows, 1, PARTITION]``, for the first n pairs.
        tail_bias: The same for the last n pairs.
    """

    rows: torch.Tensor
    num_real_rows: int
    num_rows: int
    first_pair: int
    owners: torch.Tensor
    pairs_of_owner: torch.Tensor
    bag_pairs: torch.Tensor
    bag_starts: torch.Tensor
    head_bias: torch.Tensor
    tail_bias: torch.Tensor

    def on(self, device: torch.device) -> RowGroup:
        """Return the same with all tensors on ``device``."""
        return replace(
            self,
            rows=self.rows.to(device),
            owners=self.owners.to(device),
            pairs_of_owner=self.pairs_of_owner.to(device),
            bag_pairs=self.bag_pairs.to(device),
            bag_starts=self.bag_starts.to(device),
            head_bias=self.head_bias.to(device),
            tail_bias=self.tail_bias.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRead:
    """Keys fetched from the store at once, and the groups of rows that use them.

    Attributes:
        slots: ``[pairs, PARTITION]``. Positions behind a sequence's end name its own
            first slot, so that nothing of another sequence is ever read.
    """

    slots: torch.Tensor
    groups: tuple[RowGroup, ...]

    def on(self, device: torch.device) -> KeyRead:
        """Return the same with all tensors on ``device``."""
        if device.type == "cpu":
            return self
        return KeyRead(
            slots=self.slots.to(device),
            groups=tuple(group.on(device) for group in self.groups),
        )


def plan_reads(
    slices: Sequence[SequenceSlice], *, block_size: int, num_heads: int, window: int | None
) -> tuple[KeyRead, ...]:
    """Cut a step's rows into groups and list the slots each reads.

    Args:
        slices: The step's slices, in the order of their packed rows.
        block_size: Token positions in a block.
        num_heads: Query heads of a layer, to bound the size of a tile.
        window: How many keys a row sees, itself included; ``None`` for all.
    """
    reads: list[KeyRead] = []
    singles: list[tuple[int, SequenceSlice]] = []
    num_single_keys = 0
    row = 0
    for piece in slices:
        if piece.num_tokens > 1:
            reads.append(_read_tiles(row, piece, block_size, num_heads, window))
        else:
            if singles and num_single_keys + piece.end > _GROUP_KEYS:
                reads.append(_read_singles(singles, block_size, window))
                singles, num_single_keys = [], 0
            singles.append((row, piece))
            num_single_keys += piece.end
        row += piece.num_tokens
    if singles:
        reads.append(_read_singles(singles, block_size, window))
    return tuple(reads)


def slots_of(piece: SequenceSlice, positions: _Ints, block_size: int) -> _Ints:
    """Return the slots in which a sequence keeps ``positions``."""
    blocks = piece.block_ids[positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size


def _read_singles(
    singles: Sequence[tuple[int, SequenceSlice]], block_size: int, window: int | None
) -> KeyRead:
    slots, owners, partitions = [], [], []
    for owner, (_, piece) in enumerate(singles):
        first, end = _partition_range(piece.start, piece.start, window)
        slots.append(_key_slots(piece, first, end, block_size))
        partitions.append(np.arange(first, end))
        owners.append(np.full(end - first, owner))
    owner_of, partition_of = np.concatenate(owners), np.concatenate(partitions)
    positions = np.array([piece.start for _, piece in singles])
    first_key = partition_of * PARTITION
    is_tail = first_key + PARTITION > positions[owner_of] + 1
    is_head = np.zeros_like(is_tail)
    if window is not None:
        is_head = (first_key < positions[owner_of] + 1 - window) & ~is_tail
    # Pairs that need a mask come first and last, so that a plain slice reaches them.
    # An owner's pairs stay in ascending order: its head is its first, its tail its last.
    order = np.argsort(is_tail.astype(np.int8) - is_head.astype(np.int8), kind="stable")
    owner_of, partition_of = owner_of[order], partition_of[order]
    table, bag_pairs, bag_starts = _pair_table(owner_of, len(singles))
    bias = _bias(positions[owner_of][:, None], partition_of, window)
    group = RowGroup(
        rows=torch.tensor([row for row, _ in singles]),
        num_real_rows=len(singles),
        num_rows=1,
        first_pair=0,
        owners=torch.from_numpy(owner_of),
        pairs_of_owner=table,
        bag_pairs=bag_pairs,
        bag_starts=bag_starts,
        head_bias=bias[: int(is_head.sum())],
        tail_bias=bias[len(order) - int(is_tail.sum()) :],
    )
    return KeyRead(slots=torch.from_numpy(np.concatenate(slots)[order]), groups=(group,))


def _read_tiles(
    row: int, piece: SequenceSlice, block_size: int, num_heads: int, window: int | None
) -> KeyRead:
    first, end = _partition_range(piece.start, piece.end - 1, window)
    fitting = _TILE_SCORES // (num_heads * PARTITION * (end - first))
    tile_rows = min(_MAX_TILE_ROWS, max(fitting // ROW_MULTIPLE, 1) * ROW_MULTIPLE)
    groups = [
        _tile(row + at, piece, (at, min(at + tile_rows, piece.num_tokens)), first, window)
        for at in range(0, piece.num_tokens, tile_rows)
    ]
    slots = torch.from_numpy(_key_slots(piece, first, end, block_size))
    return KeyRead(slots=slots, groups=tuple(groups))


def _tile(
    row: int,
    piece: SequenceSlice,
    span: tuple[int, int],
    first_partition: int,
    window: int | None,
) -> RowGroup:
    num_real_rows = span[1] - span[0]
    num_rows = -(-num_real_rows // ROW_MULTIPLE) * ROW_MULTIPLE
    inner = np.minimum(np.arange(num_rows), num_real_rows - 1)
    positions = piece.start + span[0] + inner
    low, high = int(positions[0]), int(positions[-1])
    first, end = _partition_range(low, high, window)
    partitions = np.arange(first, end)
    # Every partition that ends behind the first row's position has masked keys for it.
    tail = max((low + 1) // PARTITION, first)
    num_head = 0
    if window is not None:
        num_head = min(max(-(-(high + 1 - window) // PARTITION), first), tail) - first
    owners = np.zeros(end - first, dtype=np.int64)
    table, bag_pairs, bag_starts = _pair_table(owners, 1)
    return RowGroup(
        rows=torch.from_numpy(row + inner),
        num_real_rows=num_real_rows,
        num_rows=num_rows,
        first_pair=first - first_partition,
        owners=torch.from_numpy(owners),
        pairs_of_owner=table,
        bag_pairs=bag_pairs,
        bag_starts=bag_starts,
        head_bias=_bias(positions, partitions[:num_head], window),
        tail_bias=_bias(positions, partitions[tail - first :], window),
    )


def _partition_range(low: int, high: int, window: int | None) -> tuple[int, int]:
    """Return the partitions that rows at positions ``low`` to ``high`` see anything of."""
    first_key = 0 if window is None else max(low + 1 - window, 0)
    return first_key // PARTITION, high // PARTITION + 1


def _key_slots(piece: SequenceSlice, first: int, end: int, block_size: int) -> _Ints:
    positions = np.arange(first * PARTITION, end * PARTITION)
    positions[positions >= piece.end] = 0
    return slots_of(piece, positions, block_size).reshape(end - first, PARTITION)


def _pair_table(
    owner_of: _Ints, num_owners: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a group's ``pairs_of_owner``, ``bag_pairs`` and ``bag_starts``."""
    order = np.argsort(owner_of, kind="stable")
    counts = np.bincount(owner_of, minlength=num_owners)
    starts = np.cumsum(counts) - counts
    table = np.full((num_owners, int(counts.max())), len(owner_of))
    column = np.arange(len(order)) - np.repeat(starts, counts)
    table[owner_of[order], column] = order
    return torch.from_numpy(table), torch.from_numpy(order), torch.from_numpy(starts)


def _bias(positions: _Ints, partitions: _Ints, window: int | None) -> torch.Tensor:
    """Return 0 where a row sees a key and -inf elsewhere.

    Args:
        positions: Row positions: ``[rows]``, or ``[partitions, 1]`` for a row each.
        partitions: ``[partitions]``.
        window: As in ``plan_reads``.
    """
    keys = partitions[:, None, None] * PARTITION + np.arange(PARTITION)
    rows = np.broadcast_to(positions, (len(partitions), positions.shape[-1]))[:, :, None]
    hidden = keys > rows
    if window is not None:
        hidden |= keys <= rows - window
    bias = np.where(hidden, np.float32("-inf"), np.float32(0))
    return torch.from_numpy(bias)[:, None, :, None, :]
