"""Prefill cost: what computing tokens takes on this machine, learned from real steps.

A step of n tokens, of which the i-th has d_i tokens before it, is taken to last::

    seconds = per_step + per_token * n + per_pair * (d_1 + ... + d_n)

The linear layers make the second part, attention the third. The three are fitted to the
last steps by least squares, with the weights of outliers, such as a step during which the
machine did something else, lowered until they fit (iteratively reweighted least squares
with Huber's weights: Huber, "Robust estimation of a location parameter", 1964).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefold.errors import InvariantError

#: Steps that are remembered: enough to be robust, few enough to follow a change.
NUM_STEPS = 256

#: New steps after which the fit is made anew.
REFIT_EVERY = 16

#: Steps below which there is no fit.
MIN_STEPS = 4

#: A step of fewer tokens is decoding, whose cost per token is another.
MIN_TOKENS = 17

_ROUNDS = 8
#: Huber's constant, in robust standard deviations: 95 % efficient for normal errors.
_HUBER = 1.345
_MAD_TO_SIGMA = 1.4826

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFit:
    """What tokens cost, in seconds.

    Attributes:
        per_step: Whatever the step computes.
        per_token: Its linear layers.
        per_pair: Attention of one token to one before it.
    """

    per_step: float
    per_token: float
    per_pair: float

    def saved_s(self, start: int, end: int) -> float:
        """Return what not computing positions ``start`` to ``end`` - 1 spares.

        A step that computes less is still a step, so ``per_step`` is not part of it.
        """
        num_tokens = end - start
        return self.per_token * num_tokens + self.per_pair * num_pairs(start, end)


#: Before anything is measured, a token is taken to cost the same at any depth; the unit
#: does not matter for what is worth more.
PRIOR = CostFit(per_step=0.0, per_token=1.0, per_pair=0.0)


def num_pairs(start: int, end: int) -> float:
    """Return how many tokens those at ``start`` to ``end`` - 1 have before them in all."""
    return (end - start) * (start + end - 1) / 2


class PrefillCost:
    """The fit to the last prefill steps. Owned by the cache; one thread.

    Invariants: no coefficient of the fit is negative.
    """

    __slots__ = ("_fit", "_num_new", "_steps")

    def __init__(self) -> None:
        # Of each its seconds, tokens and pairs.
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=NUM_STEPS)
        self._num_new = 0
        self._fit: CostFit | None = None

    def note_step(self, seconds: float, num_tokens: int, num_pairs: float) -> None:
        """Take in a step. O(1) but for every ``REFIT_EVERY``-th, which is O(steps kept).

        Args:
            seconds: How long it took.
            num_tokens: Positions it computed.
            num_pairs: Sum over them of how many were before each.
        """
        if num_tokens < MIN_TOKENS or not seconds > 0:
            return
        self._steps.append((seconds, float(num_tokens), num_pairs))
        self._num_new += 1
        # The first ones count most, so they do not have to wait.
        if self._num_new >= REFIT_EVERY or MIN_STEPS <= len(self._steps) < REFIT_EVERY:
            self._num_new = 0
            self._fit = fit_steps(np.array(self._steps))

    @property
    def fit(self) -> CostFit | None:
        """What was fitted; None before there are ``MIN_STEPS`` prefill steps."""
        return self._fit

    @property
    def model(self) -> CostFit:
        """The fit, or the prior, whose unit is not the second."""
        return self._fit or PRIOR

    def assume(self, fit: CostFit) -> None:
        """Take costs as given instead of measured, as in a replay."""
        self._steps.clear()
        self._fit = fit

    def forget(self) -> None:
        """Begin anew, for another model."""
        self._steps.clear()
        self._num_new = 0
        self._fit = None

    @property
    def grows(self) -> bool:
        """Whether a deep token costs more than one at the beginning."""
        return self.model.per_pair > 0

    def relative(self, depth: float) -> float:
        """Return what a token at ``depth`` costs, as a multiple of the first one."""
        fit = self.model
        return 1.0 + depth * fit.per_pair / fit.per_token if fit.per_token else 1.0

    def saved_ms(self, start: int, end: int) -> float | None:
        """Return the milliseconds that a hit of positions ``start`` to ``end`` - 1 saves.

        None before there is a fit.
        """
        return None if self._fit is None else 1000.0 * self._fit.saved_s(start, end)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if the fit says that computing gives time back."""
        fit = self.model
        if min(fit.per_step, fit.per_token, fit.per_pair) < 0:
            raise InvariantError("a prefill cost is negative")


def fit_steps(steps: _Floats) -> CostFit:
    """Fit ``steps``, ``[n, 3]`` of seconds, tokens and pairs; n at least 1. O(n)."""
    seconds, num_tokens, pairs = steps.T
    columns = np.stack([np.ones_like(seconds), num_tokens, pairs], axis=1)
    # Columns of very different sizes would spoil the solution's last digits.
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    columns = columns / scale
    weights = np.ones_like(seconds)
    solution = np.zeros(3)
    for _ in range(_ROUNDS):
        solution = _solve(columns, seconds, weights)
        errors = np.abs(seconds - columns @ solution)
        sigma = _MAD_TO_SIGMA * float(np.median(errors))
        if sigma <= 1e-12 * float(np.median(seconds)):
            break
        weights = np.minimum(1.0, _HUBER * sigma / np.maximum(errors, 1e-300))
    per_step, per_token, per_pair = (float(each) for each in solution / scale)
    return CostFit(per_step=per_step, per_token=per_token, per_pair=per_pair)


def _solve(columns: _Floats, seconds: _Floats, weights: _Floats) -> _Floats:
    """Return weighted least squares with no negative coefficient.

    There are three columns, so the best of all subsets is found by trying them.
    """
    root = np.sqrt(weights)
    target = seconds * root
    best, best_error = np.zeros(3), float("inf")
    # Per-token cost is in all of them: without it nothing would be worth keeping.
    for chosen in ([0, 1, 2], [1, 2], [0, 1], [1]):
        its = columns[:, chosen] * root[:, None]
        found = np.linalg.lstsq(its, target, rcond=None)[0]
        error = float(((its @ found - target) ** 2).sum())
        if (found >= 0).all() and error < best_error * (1 - 1e-9):
            best, best_error = np.zeros(3), error
            best[chosen] = found
        # The full fit, where it is allowed, cannot be bettered.
        if len(chosen) == 3 and (found >= 0).all():
            break
    return best
