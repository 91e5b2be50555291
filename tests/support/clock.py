"""A clock that ticks once a reading, so that no two events share a time."""

from __future__ import annotations


class TickingClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now
