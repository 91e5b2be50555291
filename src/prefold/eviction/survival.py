"""Survival: how likely idle blocks are to be used again, learned from those that were.

A *hazard* is the rate of next uses: of a thousand blocks that wait at some age, how many
are used in the next second. It is taken to be constant within each of ``NUM_AGES`` ranges
of age, and to be the product of a common one and a factor for each feature of how the
blocks were used last (a log-linear, or multiplicative intensity, model)::

    hazard(kind, age) = common(age) * factor_1(turn, age) * factor_2(new tokens, age) * ...

A factor is fitted to what the others leave unexplained: next uses seen, divided by those
that the model without this factor expects (iterative proportional fitting, as in Holford,
"The analysis of rates and of survivorship using log-linear models", 1980). What is seen
fades, so that the model follows the load. Before anything is seen, a block is the likelier
to be used again the younger it is, which is LRU.

What a block that waits is worth is the best there is, over all times to give it up, of
P(used until then) / E[time held until then]: its Gittins index (Gittins, "Bandit processes
and dynamic allocation indices", 1979), which for cached objects is the idea behind hit
density (Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit
density", 2018). The hazard of this moment alone would throw out what is due in a minute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: Ranges of age.
NUM_AGES = 26
_FIRST_S = 0.5
_RATIO = 1.6818  # four ranges a factor of eight

#: Events before which the common hazard, the smoothed factors and the factors themselves
#: are closer to what was thought before than to what was seen.
_COMMON_WEIGHT = 4.0
_SMOOTH_WEIGHT = 4.0
_FACTOR_WEIGHT = 12.0
#: How much a neighbouring range of age counts in smoothing.
_NEIGHBOUR = 0.7
#: Share of the way, in logarithms, that a factor goes in one fit: all factors move at
#: once, and would swing otherwise.
_DAMPING = 0.15
_PRIOR_RATE = 0.3
#: Next uses per second that are believed in, whatever was seen.
_POSSIBLE = (1e-12, 1e6)

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]

#: Where the ranges begin, in seconds; the last one never ends.
EDGES: tuple[float, ...] = (
    0.0,
    *(_FIRST_S * _RATIO**step for step in range(NUM_AGES - 1)),
)


def age_of(seconds: float) -> int:
    """Return the number of the range that an age lies in."""
    return bisect_right(EDGES, seconds) - 1


def end_of(age: int) -> float:
    """Return where a range ends, in seconds."""
    return EDGES[age + 1] if age + 1 < NUM_AGES else float("inf")


def _prior_hazards() -> _Floats:
    edges = np.array(EDGES)
    middle = np.empty(NUM_AGES)
    middle[0] = _FIRST_S / 2
    middle[1:-1] = np.sqrt(edges[1:-1] * edges[2:])
    middle[-1] = 1.3 * edges[-1]
    return np.asarray(_PRIOR_RATE / (middle + _FIRST_S))


def _widths() -> _Floats:
    edges = np.array(EDGES)
    return np.append(np.diff(edges), 0.7 * edges[-1])


_PRIOR = _prior_hazards()
_WIDTHS = _widths()
_AGES = np.arange(NUM_AGES)
_SMOOTHING = _NEIGHBOUR ** np.abs(_AGES[:, None] - _AGES)


class _Factor:
    """One feature's factors, ``[values, ages]``, and what they are fitted to.

    Attributes:
        ratio: The factors.
        seen: Next uses of blocks with each value, faded.
        expected: Those that the model without this factor expects.
    """

    __slots__ = ("expected", "ratio", "seen")

    def __init__(self, num_values: int) -> None:
        self.ratio = np.ones((num_values, NUM_AGES))
        self.seen = np.zeros((num_values, NUM_AGES))
        self.expected = np.zeros((num_values, NUM_AGES))

    def take_in(
        self, values: _Ints, events: _Floats, expected: _Floats, keep: float
    ) -> None:
        """Add what was seen of every kind, ``[kinds, ages]``, and let all of it fade."""
        np.add.at(self.seen, values, events)
        np.add.at(self.expected, values, expected / self.ratio[values])
        self.seen *= keep
        self.expected *= keep

    def fit(self) -> None:
        """Go a part of the way to what would explain what was seen."""
        smooth = (self.seen @ _SMOOTHING + _SMOOTH_WEIGHT) / (
            self.expected @ _SMOOTHING + _SMOOTH_WEIGHT
        )
        wanted = (self.seen + _FACTOR_WEIGHT * smooth) / (self.expected + _FACTOR_WEIGHT)
        self.ratio *= (wanted / self.ratio) ** _DAMPING


class Survival:
    """The model of one cache. One thread.

    Attributes:
        num_kinds: Ways of being used, each with its number.
    """

    __slots__ = (
        "_common",
        "_events",
        "_exposure",
        "_factors",
        "_features",
        "_hazards",
        "_indices",
        "_new_events",
        "_new_exposure",
        "_number_of",
    )

    def __init__(self, num_values: Sequence[int]) -> None:
        """Know nothing yet.

        Args:
            num_values: For every feature, how many values it has.
        """
        self._common = _PRIOR.copy()
        self._events = np.zeros(NUM_AGES)
        self._exposure = np.zeros(NUM_AGES)
        self._factors = [_Factor(each) for each in num_values]
        self._number_of: dict[tuple[int, ...], int] = {}
        self._features: list[tuple[int, ...]] = []
        # What was seen since the last fit, ``[kinds][ages]``; plain lists, because single
        # numbers are changed.
        self._new_events: list[list[float]] = []
        self._new_exposure: list[list[float]] = []
        self._hazards: list[_Floats] = []
        self._indices: list[list[float]] = []

    @property
    def num_kinds(self) -> int:
        return len(self._features)

    def kind_of(self, features: tuple[int, ...]) -> int:
        """Return the number of the kind that has these values."""
        kind = self._number_of.get(features)
        if kind is None:
            kind = self._number_of[features] = len(self._features)
            self._features.append(features)
            self._new_events.append([0.0] * NUM_AGES)
            self._new_exposure.append([0.0] * NUM_AGES)
            [hazard] = self._predict(np.array([features]))
            self._hazards.append(hazard)
            self._indices.append(_gittins(hazard[None])[0].tolist())
        return kind

    def note_event(self, kind: int, age: int, weight: float) -> None:
        """Note next uses at an age."""
        self._new_events[kind][age] += weight

    def note_exposure(self, kind: int, age: int, block_seconds: float) -> None:
        """Note that blocks waited, in a range of age, for so many seconds."""
        self._new_exposure[kind][age] += block_seconds

    def worth(self, kind: int, age: int) -> float:
        """Return the next uses to be expected per second that such a block is held."""
        return self._indices[kind][age]

    def fit(self, keep: float) -> None:
        """Fit the model to what was seen. O(kinds), about 10 ms for a thousand.

        Args:
            keep: Share of what was seen, old and new, that goes on counting.
        """
        if not self._features:
            return
        features = np.array(self._features)
        self._take_in(features, keep)
        exposure = self._exposure + _COMMON_WEIGHT / _PRIOR
        self._common = (self._events + _COMMON_WEIGHT) / exposure
        for factor in self._factors:
            factor.fit()
        hazards = self._predict(features)
        self._hazards = list(hazards)
        self._indices = _gittins(hazards).tolist()

    def _take_in(self, features: _Ints, keep: float) -> None:
        events = np.array(self._new_events)
        exposure = np.array(self._new_exposure)
        expected = exposure * np.array(self._hazards)
        self._events = keep * (self._events + events.sum(axis=0))
        self._exposure = keep * (self._exposure + exposure.sum(axis=0))
        for factor, values in zip(self._factors, features.T, strict=True):
            factor.take_in(values, events, expected, keep)
        for row in (*self._new_events, *self._new_exposure):
            row[:] = [0.0] * NUM_AGES

    def _predict(self, features: _Ints) -> _Floats:
        """Return the hazards of kinds, ``[kinds, ages]``."""
        hazards = np.tile(self._common, (len(features), 1))
        for factor, values in zip(self._factors, features.T, strict=True):
            hazards *= factor.ratio[values]
        return np.clip(hazards, *_POSSIBLE)


def _gittins(hazards: _Floats) -> _Floats:
    """Return the index of every hazard, ``[kinds, ages]``, from the middle of each age."""
    risks = hazards * _WIDTHS
    held = -np.expm1(-risks) / hazards
    result = np.empty_like(hazards)
    for age in range(NUM_AGES):
        # The risk run through from here to the end of each range, this one being half over.
        risk = risks[:, age:].copy()
        risk[:, 0] /= 2
        risk = risk.cumsum(axis=1)
        time = held[:, age:].copy()
        time[:, 0] = -np.expm1(-risk[:, 0]) / hazards[:, age]
        # A later range is lived through only by what was not used before it.
        time[:, 1:] *= np.exp(-risk[:, :-1])
        result[:, age] = (-np.expm1(-risk) / time.cumsum(axis=1)).max(axis=1)
    return result
