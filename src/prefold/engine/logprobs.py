"""Log-probabilities: how likely the model found a token, and what else it found likely.

Computed in float64 from one row of logits alone, so they do not depend on what else is
in the batch. Among equal logits the lower token id counts as the more likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token's log-probability, given everything before it.

    Attributes:
        logprob: Natural logarithm.
        top: The most likely tokens and theirs, most likely first; the token itself is
            among them only if it is one of the most likely.
    """

    token_id: int = field(repr=False)
    logprob: float = field(repr=False)
    top: tuple[tuple[int, float], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRows:
    """Log-probabilities of several tokens, as arrays.

    Attributes:
        chosen: Of the tokens themselves, float32 ``[rows]``.
        top_ids: The most likely tokens, int32 ``[rows, width]``, most likely first.
        top: Theirs, float32 ``[rows, width]``.
    """

    chosen: npt.NDArray[np.float32]
    top_ids: npt.NDArray[np.int32]
    top: npt.NDArray[np.float32]


def measure_rows(
    logits: torch.Tensor, token_ids: Sequence[int] | npt.NDArray[np.int64], width: int
) -> LogprobRows:
    """Return the log-probabilities of tokens under rows of logits.

    Args:
        logits: Float32 ``[rows, vocabulary]``.
        token_ids: One a row.
        width: Alternatives to report; fewer where the vocabulary has fewer.
    """
    rows = logits.detach().to("cpu", torch.float32).numpy()
    width = min(width, rows.shape[1])
    chosen = np.empty(len(rows), dtype=np.float32)
    top_ids = np.empty((len(rows), width), dtype=np.int32)
    top = np.empty((len(rows), width), dtype=np.float32)
    # Row by row: one row in float64 fits the cache, and its sum has one fixed order.
    for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True)):
        values = row.astype(np.float64)
        largest = values.max()
        total = largest + np.log(np.exp(values - largest).sum())
        chosen[index] = values[token_id] - total
        leading = _leading(values, width)
        top_ids[index] = leading
        top[index] = values[leading] - total
    return LogprobRows(chosen=chosen, top_ids=top_ids, top=top)


def to_logprobs(
    rows: LogprobRows, token_ids: Sequence[int] | npt.NDArray[np.int64], width: int
) -> list[TokenLogprob]:
    """Return rows as values, with at most ``width`` alternatives each."""
    return [
        TokenLogprob(
            token_id=int(token_id),
            logprob=float(rows.chosen[index]),
            top=tuple(
                zip(
                    rows.top_ids[index, :width].tolist(),
                    rows.top[index, :width].tolist(),
                    strict=True,
                )
            ),
        )
        for index, token_id in enumerate(token_ids)
    ]


def _leading(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    if count == 0:
        return np.empty(0, dtype=np.int64)
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    leading = np.flatnonzero(values >= threshold)
    return leading[np.argsort(-values[leading], kind="stable")][:count]
