"""Sequence content: what a sequence's positions are filled with that holds no token.

A step gets a cut of it: which rows of the model's input come from where, and at which
positions along each axis. A cut may begin and end anywhere, also inside an image.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from prefold.blocks.table import TokenIds
from prefold.cache.contents import ContentItem
from prefold.engine.mixed_prompt import ContentSource, MixedPrompt
from prefold.errors import InvariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Rows of a slice that are filled by a content.

    Attributes:
        row: The first one, counted from the start of the slice.
        num_rows: How many.
        offset: Which of the content's vectors the first one gets.
    """

    row: int
    num_rows: int
    offset: int
    source: ContentSource = field(repr=False)

    def vectors(self) -> torch.Tensor:
        """Return ``[num_rows, hidden]``.

        Raises:
            InvariantError: The content has fewer.
        """
        rows = self.source.rows()[self.offset : self.offset + self.num_rows]
        if len(rows) != self.num_rows:
            raise InvariantError("a content fills more positions than it has vectors for")
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceContent:
    """What a slice of a step has besides token ids.

    Attributes:
        token_ids: The slice's, with ids of the vocabulary where contents are.
        fills: What takes the place of their embeddings.
        positions: ``[axes, rows]``; None where they are those of the slice.
    """

    token_ids: TokenIds = field(repr=False)
    fills: tuple[Fill, ...]
    positions: npt.NDArray[np.int64] | None = field(repr=False)


class SequenceContent:
    """The contents of one prompt, and of all sequences that begin with it.

    Holds the items that stand for them in token arrays. Vectors that were computed are
    kept as long as it is: chunks may cut an image, and a preempted sequence needs it again.
    """

    __slots__ = ("_delta", "_items", "_prompt")

    def __init__(self, prompt: MixedPrompt, items: list[ContentItem]) -> None:
        self._prompt = prompt
        self._items = items
        # Positions after the prompt go on from its highest, along all axes alike.
        positions = prompt.positions
        self._delta = 0 if positions is None else int(positions.max()) + 1 - len(prompt)

    def cut(self, token_ids: TokenIds, start: int, end: int) -> SliceContent | None:
        """Return what positions ``start`` to ``end`` - 1 have; None if nothing.

        Args:
            token_ids: Of those positions, with numbers where contents are.
            start: Of the slice.
            end: One past it.
        """
        fills = tuple(
            Fill(
                row=max(span.start, start) - start,
                num_rows=min(span.end, end) - max(span.start, start),
                offset=span.offset + max(start - span.start, 0),
                source=self._prompt.sources[span.digest],
            )
            for span in self._prompt.spans
            if span.start < end and span.end > start
        )
        if not fills and self._prompt.positions is None:
            return None
        return SliceContent(
            token_ids=np.maximum(token_ids, 0),
            fills=fills,
            positions=self._positions(start, end),
        )

    def _positions(self, start: int, end: int) -> npt.NDArray[np.int64] | None:
        given = self._prompt.positions
        if given is None:
            return None
        length = given.shape[1]
        later = np.arange(max(start, length), end, dtype=np.int64) + self._delta
        later = np.broadcast_to(later, (given.shape[0], len(later)))
        return np.concatenate((given[:, start:end], later), axis=1)
