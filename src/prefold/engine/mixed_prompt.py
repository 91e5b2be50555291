"""Mixed prompts: token ids with contents between them that are no tokens.

::

    token_ids   5  8  0  0  0  9        what is there in place of a content means nothing
    spans             [digest ]
    sources            digest -> vectors [3, hidden]

An image fills one or more stretches of positions; an embedding fills one position, and
has a digest of its own, so that two prompts share those that they begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from prefold.blocks.table import TOKEN_DTYPE, TokenIds
from prefold.errors import RequestError
from prefold.identity.content import ContentSpan, embedding_digest


class ContentSource(Protocol):
    """Where the vectors of one content come from."""

    def rows(self) -> torch.Tensor:
        """Return the vectors of all positions that it fills, ``[positions, hidden]``.

        May compute them when it is first asked, on the engine's thread.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedPrompt:
    """A prompt as the model is given it; made by whoever reads images or embeddings.

    Attributes:
        token_ids: One a position; where a content is, any id of the vocabulary.
        spans: Ascending and disjoint; of every content, all that it fills.
        sources: By digest, one for every content in ``spans``.
        positions: ``[axes, len(token_ids)]``, for models that count positions along
            several axes; None where position i is i.
    """

    token_ids: TokenIds = field(repr=False)
    spans: tuple[ContentSpan, ...] = field(repr=False)
    sources: Mapping[bytes, ContentSource] = field(repr=False)
    positions: npt.NDArray[np.int64] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.token_ids)

    def marked_ids(self) -> TokenIds:
        """Return the token ids, with negative numbers of 31 bits where contents are.

        For whoever only describes prompts: contents that differ mostly have other numbers.
        """
        marked = self.token_ids.copy()
        for span in self.spans:
            start = int.from_bytes(span.digest[:4], "little") & 0x3FFF_FFFF
            offsets = np.arange(span.offset, span.offset + span.end - span.start)
            marked[span.start : span.end] = -1 - (start + offsets) % 2**30
        return marked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptEmbeds:
    """A prompt of embeddings in place of token ids, or of both.

    Attributes:
        embeds: ``[n, hidden]`` of floating-point numbers, a tensor or an array.
        token_ids: None if all positions are filled by ``embeds``; else n ids, which
            count where ``mask`` is false.
        mask: n truth values, true where the embedding counts and the token id does not.
    """

    embeds: torch.Tensor | npt.NDArray[np.floating] = field(repr=False)
    token_ids: Sequence[int] | npt.NDArray[np.integer] | None = field(
        default=None, repr=False
    )
    mask: Sequence[bool] | npt.NDArray[np.bool_] | None = field(default=None, repr=False)


class EmbeddingRow:
    """One embedding, as a row of those that came with it."""

    __slots__ = ("_embeds", "_index")

    def __init__(self, embeds: torch.Tensor, index: int) -> None:
        self._embeds = embeds
        self._index = index

    def rows(self) -> torch.Tensor:
        return self._embeds[self._index : self._index + 1]


def mix_embeds(prompt: PromptEmbeds, hidden_size: int, dtype: torch.dtype) -> MixedPrompt:
    """Return a prompt of embeddings as the model is given it.

    Args:
        prompt: As it came.
        hidden_size: Of the model.
        dtype: What the model computes with; the embeddings are rounded to it first, and
            identified by what is then left of them.

    Raises:
        RequestError: Numbers of another kind or shape, or such as are not finite; token
            ids or a mask of another length, or one without the other.
    """
    embeds = _to_tensor(prompt.embeds, hidden_size).to(dtype)
    if not bool(torch.isfinite(embeds).all()):
        raise RequestError(
            "every number of the embeddings must be finite, also when it is rounded to "
            f"the model's {_name(dtype)}"
        )
    token_ids, mask = _tokens_beside(prompt, len(embeds))
    values = embeds.float().numpy()
    options = (_name(dtype),)
    spans: list[ContentSpan] = []
    sources: dict[bytes, ContentSource] = {}
    for index in np.flatnonzero(mask).tolist():
        key = embedding_digest(values[index], options=options)
        spans.append(ContentSpan(index, index + 1, key))
        sources[key] = EmbeddingRow(embeds, index)
    return MixedPrompt(token_ids=token_ids, spans=tuple(spans), sources=sources)


def _to_tensor(
    embeds: torch.Tensor | npt.NDArray[np.floating], hidden_size: int
) -> torch.Tensor:
    if isinstance(embeds, np.ndarray):
        if embeds.dtype not in (np.float16, np.float32, np.float64):
            raise RequestError(f"embeds must be floating-point numbers, got {embeds.dtype}")
        embeds = torch.from_numpy(np.ascontiguousarray(embeds))
    if not isinstance(embeds, torch.Tensor):
        raise RequestError(
            f"embeds must be a tensor or an array, got a {type(embeds).__name__}"
        )
    if not embeds.dtype.is_floating_point:
        raise RequestError(f"embeds must be floating-point numbers, got {embeds.dtype}")
    if embeds.ndim != 2 or embeds.shape[1] != hidden_size or len(embeds) == 0:
        raise RequestError(
            f"embeds must have the shape [n, {hidden_size}], one row a position and as "
            f"many columns as the model's hidden size, got {list(embeds.shape)}"
        )
    # A copy: nobody may change them once their digest is made.
    return embeds.detach().to("cpu", copy=True).contiguous()


def _tokens_beside(
    prompt: PromptEmbeds, length: int
) -> tuple[TokenIds, npt.NDArray[np.bool_]]:
    if (prompt.token_ids is None) != (prompt.mask is None):
        raise RequestError("token_ids and mask of a prompt of embeddings come together")
    if prompt.token_ids is None or prompt.mask is None:
        return np.zeros(length, TOKEN_DTYPE), np.ones(length, np.bool_)
    token_ids, mask = np.asarray(prompt.token_ids), np.asarray(prompt.mask)
    if mask.dtype != np.bool_ or mask.shape != (length,):
        raise RequestError(f"mask must be a flat list of {length} truth values")
    if token_ids.shape != (length,) or not np.issubdtype(token_ids.dtype, np.integer):
        raise RequestError(f"token_ids must be a flat list of {length} token ids")
    kept = token_ids.astype(TOKEN_DTYPE)
    kept[mask] = 0
    return kept, mask


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
