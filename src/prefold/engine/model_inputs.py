"""Model inputs: the rows of one step, as tensors that the model is called with.

Token ids go in as they are. Where a slice has contents, all rows go in as embeddings: a
token's is looked up, a row at a time and so with the same bits, and a content's is put
in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from prefold.engine.attention import AttentionSite
from prefold.engine.batch import SequenceSlice
from prefold.errors import RequestError

#: Tokens that are tried both ways; any number will do.
_TRIED_IDS = 16


class InputRows:
    """Token ids, positions and contents of one step. Lives for a step.

    Args:
        slices: In the order of their rows.
        num_rows: Those of the slices and padding behind them.
        position_offset: Added to every position of a slice, along every axis.
    """

    __slots__ = ("_fills", "positions", "token_ids")

    def __init__(
        self, slices: Sequence[SequenceSlice], num_rows: int, position_offset: int
    ) -> None:
        self.token_ids = np.zeros(num_rows, dtype=np.int64)
        axes = [
            len(piece.content.positions)
            for piece in slices
            if piece.content is not None and piece.content.positions is not None
        ]
        #: ``[axes, rows]``; one axis unless a slice has more.
        self.positions = np.zeros((max(axes, default=1), num_rows), dtype=np.int64)
        self._fills: list[tuple[int, SequenceSlice]] = []
        row = 0
        for piece in slices:
            end = row + piece.num_tokens
            content = piece.content
            places = np.arange(piece.start, piece.end)
            if content is None:
                self.token_ids[row:end] = piece.token_ids
                self.positions[:, row:end] = places
            else:
                self.token_ids[row:end] = content.token_ids
                given = content.positions
                self.positions[:, row:end] = places if given is None else given
                self._fills.append((row, piece))
            self.positions[:, row:end] += position_offset
            row = end

    def keywords(self, model: nn.Module, device: torch.device) -> dict[str, torch.Tensor]:
        """Return what the model is called with."""
        token_ids = torch.from_numpy(self.token_ids).to(device)[None]
        positions = torch.from_numpy(self.positions).to(device)[:, None]
        keywords = {"position_ids": positions[0] if len(positions) == 1 else positions}
        if any(piece.content.fills for _, piece in self._fills if piece.content):
            keywords["inputs_embeds"] = self._embed(model, token_ids)
        else:
            keywords["input_ids"] = token_ids
        return keywords

    def _embed(self, model: nn.Module, token_ids: torch.Tensor) -> torch.Tensor:
        # Outside an embedding's hands rows could be written over in its own memory.
        embeds: torch.Tensor = input_embeddings(model)(token_ids).clone()
        for row, piece in self._fills:
            for fill in piece.content.fills if piece.content else ():
                first = row + fill.row
                embeds[0, first : first + fill.num_rows] = fill.vectors().to(embeds)
        return embeds


def input_embeddings(model: nn.Module) -> nn.Module:
    """Return the module that makes embeddings of token ids."""
    # A module's attributes are tensors or modules, mypy believes.
    find: Callable[[], nn.Module] = model.get_input_embeddings  # type: ignore[assignment]
    return find()


def hidden_size_of(model: nn.Module) -> int:
    """Return how many numbers an embedding has."""
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    with torch.inference_mode():
        return int(input_embeddings(model)(token).shape[-1])


@torch.inference_mode()
def check_embeddings(model: nn.Module, site: AttentionSite) -> None:
    """Refuse a model that makes more of a token id than its embedding.

    Args:
        model: Any.
        site: Where its attention happens; that does not matter.

    Raises:
        RequestError: It gives other bits for a token's embedding than for its id.
    """
    token_ids = torch.arange(_TRIED_IDS, device=next(model.parameters()).device)[None]
    given = (
        {"input_ids": token_ids},
        {"inputs_embeds": input_embeddings(model)(token_ids).clone()},
    )
    by_id, by_embedding = (
        model(
            **each,
            position_ids=torch.zeros_like(token_ids),
            use_cache=False,
            attention_site=site,
        ).logits
        for each in given
    )
    if not torch.equal(by_id, by_embedding):
        raise RequestError(
            "this model makes more of a token id than its embedding, so it takes no "
            "embeddings in place of tokens"
        )
