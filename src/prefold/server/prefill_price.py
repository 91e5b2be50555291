"""Prefill price: what computing a prompt token costs here, measured in real steps."""

from __future__ import annotations

from collections import deque

#: Steps that the mean is taken over: enough to smooth, few enough to follow a change.
NUM_STEPS = 256


class PrefillPrice:
    """Mean seconds per token over the last steps that must have computed prompts.

    A step of more tokens than sequences may run computes at least one prompt's; what
    decoding it does besides is cheap next to that, and counted in.

    Invariants: the sums are those of the steps kept.
    """

    __slots__ = ("_min_tokens", "_num_tokens", "_seconds", "_steps")

    def __init__(self, *, min_tokens: int) -> None:
        """Count steps of at least ``min_tokens`` tokens."""
        self._min_tokens = min_tokens
        self._steps: deque[tuple[float, int]] = deque(maxlen=NUM_STEPS)
        self._seconds = 0.0
        self._num_tokens = 0

    def note(self, seconds: float, num_tokens: int) -> None:
        """Take in a step, if it counts."""
        if num_tokens < self._min_tokens:
            return
        if len(self._steps) == NUM_STEPS:
            oldest_seconds, oldest_tokens = self._steps[0]
            self._seconds -= oldest_seconds
            self._num_tokens -= oldest_tokens
        self._steps.append((seconds, num_tokens))
        self._seconds += seconds
        self._num_tokens += num_tokens

    @property
    def seconds_per_token(self) -> float | None:
        """The mean; None before the first such step."""
        if not self._num_tokens:
            return None
        # Differences of floats may end a hair below zero.
        return max(self._seconds, 0.0) / self._num_tokens
