"""The sampler: from logits to the next token, one sequence's choice apart from others'.

Greedy rows of a step are answered together by one reduction over the rows; every other
row is worked on alone, in float64 and by one fixed order of operations. So a row gives
the same token whatever its neighbours are, and a seed gives the same reply whatever
else is running::

    logits -> bias -> repetition penalty -> temperature -> top-k -> top-p -> min-p -> draw

Among equal logits the lower token id counts as the more likely, everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from prefold.engine.request import SamplingParams
from prefold.errors import RequestError

UNUSABLE = "the model returned logits that are not numbers, so no token can be chosen"

#: How many of the most likely tokens are sorted at first. Sorting a vocabulary of
#: 50,000 takes longer than all the rest, and top-p seldom reaches this far.
_FIRST_CANDIDATES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRow:
    """One row's outcome: a token, or the sentence that says why there is none."""

    token_id: int | None
    error: str | None


class SamplerState:
    """What one sequence's sampling depends on besides the logits.

    Owned by the sequence. It refers to nothing of a step, so it simply lives on while
    the sequence is preempted and continues where it was.
    """

    __slots__ = ("_bits", "_num_sampled", "_seed", "_seen", "params")

    def __init__(
        self,
        params: SamplingParams,
        seed: np.random.SeedSequence,
        seen: npt.NDArray[np.bool_] | None,
    ) -> None:
        """Start with the stream of ``seed``.

        ``seen`` marks, per token id, what the repetition penalty applies to; ``None``
        if there is no penalty. The state takes it over.
        """
        self.params = params
        self._seed = seed
        self._seen = seen
        # Raw PCG64 numbers: their stream is promised to stay the same over releases
        # of numpy, which that of its distributions is not.
        self._bits = np.random.PCG64(seed)
        self._num_sampled = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the unchanged logits' maximum is the answer."""
        params = self.params
        return params.temperature == 0.0 and self._seen is None and not params.logit_bias

    def fork(self, index: int) -> SamplerState:
        """Return the state of the fork with this number, from here on its own stream.

        The stream follows from the parent's seed, the tokens drawn so far and
        ``index``; the parent's own stream is not moved.
        """
        seed = np.random.SeedSequence(
            entropy=self._seed.entropy,
            spawn_key=(*self._seed.spawn_key, self._num_sampled, index),
        )
        seen = None if self._seen is None else self._seen.copy()
        return SamplerState(self.params, seed, seen)

    def record(self, token_id: int) -> None:
        """Count a chosen token. ``Sampler`` does it for those it chooses."""
        self._num_sampled += 1
        if self._seen is not None:
            self._seen[token_id] = True

    def adjust(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return ``logits`` with bias and penalty; the argument is not changed."""
        if self.params.logit_bias:
            logits = logits.copy()
            for token_id, bias in self.params.logit_bias:
                logits[token_id] += bias
        if self._seen is None:
            return logits
        penalty = self.params.repetition_penalty
        # Towards less likely on both sides of zero.
        scaled = np.where(logits > 0, logits / penalty, logits * penalty)
        return np.where(self._seen, scaled, logits)

    def draw(self) -> float:
        """Return the next number of the stream, in [0, 1), as a multiple of 2**-53."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53


class Sampler:
    """Chooses tokens over one vocabulary; keeps nothing between calls.

    Args:
        vocab_size: Columns of the logits.
    """

    __slots__ = ("_vocab_size",)

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def start(
        self,
        params: SamplingParams,
        prompt: npt.NDArray[np.int64],
        *,
        fallback_seed: int,
    ) -> SamplerState:
        """Return a new sequence's state.

        Args:
            params: The request's parameters.
            prompt: Its token ids, read only here; negative ones stand for no token.
            fallback_seed: Any integer, used where ``params`` names no seed.

        Raises:
            RequestError: A bias is for a token id outside the vocabulary.
        """
        for index, (token_id, _) in enumerate(params.logit_bias):
            if token_id >= self._vocab_size:
                raise RequestError(
                    f"the token id of logit_bias number {index} is outside the vocabulary "
                    f"of {self._vocab_size}"
                )
        seen: npt.NDArray[np.bool_] | None = None
        if params.repetition_penalty != 1.0:
            seen = np.zeros(self._vocab_size, dtype=np.bool_)
            seen[prompt[prompt >= 0]] = True
        seed = fallback_seed if params.seed is None else params.seed
        # Seeds of a ``SeedSequence`` are not negative; two's complement keeps all apart.
        return SamplerState(params, np.random.SeedSequence(seed % 2**64), seen)

    def sample(self, logits: torch.Tensor, state: SamplerState) -> int:
        """Choose one sequence's next token and record it in ``state``.

        Args:
            logits: Float32 ``[vocab_size]``, not changed.
            state: The sequence's own.

        Raises:
            RequestError: The logits are no numbers; ``state`` is as before.
        """
        [row] = self.sample_batch(logits[None], [state])
        if row.token_id is None:
            raise RequestError(row.error)
        return row.token_id

    def sample_batch(
        self, logits: torch.Tensor, states: Sequence[SamplerState]
    ) -> list[SampledRow]:
        """Choose the next token of each row's sequence and record it in its state.

        A row of unusable logits has an error and leaves its state as it was; the
        other rows are not affected.

        Args:
            logits: Float32 ``[len(states), vocab_size]``, not changed.
            states: The rows' sequences, all different.
        """
        if logits.shape != (len(states), self._vocab_size):
            raise ValueError(
                f"{len(states)} rows of {self._vocab_size} logits are needed, "
                f"got {tuple(logits.shape)}"
            )
        if not states:
            return []
        # One reduction answers all greedy rows, and tells which rows are usable at all:
        # NaN counts as the largest.
        logits = logits.detach()
        token_ids, is_usable = _leading(logits)
        others = [
            row
            for row, state in enumerate(states)
            if is_usable[row] and not state.is_greedy
        ]
        if others:
            for row, values in zip(others, _to_host(logits, others), strict=True):
                token_ids[row] = _choose(values.astype(np.float64), states[row])
        return [
            _record(token_id, state) if usable else _FAILED
            for token_id, state, usable in zip(token_ids, states, is_usable, strict=True)
        ]


_FAILED = SampledRow(token_id=None, error=UNUSABLE)


def _record(token_id: int, state: SamplerState) -> SampledRow:
    state.record(token_id)
    return SampledRow(token_id=token_id, error=None)


def _leading(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """Return each row's first largest column, and whether its value is finite."""
    if logits.device.type == "cpu":
        # A tenth of the time that torch takes for it, and nothing waits for threads.
        rows = logits.numpy()
        columns = rows.argmax(axis=1)
        return columns.tolist(), np.isfinite(rows[np.arange(len(rows)), columns]).tolist()
    largest, places = logits.max(dim=-1)
    return places.tolist(), torch.isfinite(largest).tolist()


def _to_host(logits: torch.Tensor, rows: list[int]) -> npt.NDArray[np.float32]:
    if logits.device.type == "cpu":
        host: npt.NDArray[np.float32] = logits.numpy()[rows]
        return host
    moved: npt.NDArray[np.float32] = logits[rows].cpu().numpy()
    return moved


def _choose(logits: npt.NDArray[np.float64], state: SamplerState) -> int:
    """Choose from one usable row."""
    params = state.params
    logits = state.adjust(logits)
    if params.temperature == 0.0:
        return int(logits.argmax())
    # Relative to the maximum first: dividing by a tiny temperature then gives 0 for
    # the best tokens and minus infinity for the rest, never infinity minus infinity.
    with np.errstate(over="ignore"):
        scores = (logits - logits.max()) / params.temperature
    weights = np.exp(scores)
    if params.top_k or params.top_p < 1.0:
        candidates = _most_likely(logits, weights, params)
        weights = weights[candidates]
    else:
        candidates = None
    if params.min_p > 0.0:
        # The most likely token has weight 1, whatever was cut before.
        weights = np.where(weights >= params.min_p, weights, 0.0)
    index = _draw_index(weights, state.draw())
    return index if candidates is None else int(candidates[index])


def _most_likely(
    logits: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
    params: SamplingParams,
) -> npt.NDArray[np.int64]:
    """Return the token ids that top-k and top-p keep, most likely first."""
    if params.top_k:
        order = _sort_leading(logits, params.top_k)[: params.top_k]
        mass = np.cumsum(weights[order])
        total = float(mass[-1])
    else:
        # Sort more and more candidates until they hold enough. How many were sorted
        # cannot be seen in the result: all tokens of one logit are sorted together,
        # and sums run from the most likely token on.
        total = float(weights.sum())
        count = _FIRST_CANDIDATES
        order = _sort_leading(logits, count)
        mass = np.cumsum(weights[order])
        while mass[-1] < params.top_p * total and len(order) < len(logits):
            count *= 16
            order = _sort_leading(logits, count)
            mass = np.cumsum(weights[order])
    # The token that crosses the boundary is kept as well.
    return order[: int(np.searchsorted(mass, params.top_p * total)) + 1]


def _sort_leading(logits: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return at least ``count`` token ids by falling logit, then by rising id."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
    leading = np.flatnonzero(logits >= threshold)
    return leading[np.argsort(-logits[leading], kind="stable")]


def _draw_index(weights: npt.NDArray[np.float64], uniform: float) -> int:
    """Return index i with probability ``weights[i] / weights.sum()``."""
    bounds = np.cumsum(weights)
    # The product can round up to the total, which would lie behind the last index.
    # Strictly below it, the first bound above it always belongs to a positive weight.
    target = min(uniform * bounds[-1], np.nextafter(bounds[-1], 0.0))
    return int(np.searchsorted(bounds, target, side="right"))
