"""Prefill cost: what computing a prompt's tokens takes, so what a hit saves.

A token costs the same for everything but attention, and for attention in proportion to
how many tokens stand before it; so the cost of tokens ``begin`` to ``end`` is a straight
line's area. The two figures are the machine's and the model's, to be measured there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefold.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """Milliseconds of prefill.

    The defaults are of no machine in particular: they only make saved times comparable.

    Attributes:
        ms_per_token: For a token that nothing stands before.
        ms_per_token_per_1k_depth: More for every 1,000 tokens before it.

    Raises:
        InvalidInputError: A figure is negative or not finite.
    """

    ms_per_token: float = 0.1
    ms_per_token_per_1k_depth: float = 0.01

    def __post_init__(self) -> None:
        for value in (self.ms_per_token, self.ms_per_token_per_1k_depth):
            if not math.isfinite(value) or value < 0:
                raise InvalidInputError(
                    f"a prefill cost must be a number of at least 0, got {value}"
                )

    def prefix_ms(self, num_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return what the first ``num_tokens`` tokens of each prompt cost."""
        tokens = num_tokens.astype(np.float64)
        per_depth = self.ms_per_token_per_1k_depth / 1000
        # The token at depth d has d before it: 0 + 1 + ... + (n - 1).
        return self.ms_per_token * tokens + per_depth * tokens * (tokens - 1) / 2
