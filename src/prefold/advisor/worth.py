"""Worth: what cached prefixes save against the memory they hold, and whether that pays.

Two things are compared, and a price makes them one:

- *saved*: milliseconds of prefill that hits spare, each second
- *held*: GiB of memory that cached KV takes meanwhile

The price is that of a machine: all of its time for a second costs as much as all of its
memory for that second. So on a machine of 80 GiB a GiB that is held has to save 1,000 / 80
= 12.5 ms each second, and a prefix pays from this reuse rate on::

    break-even = price * GiB / ms that one reuse saves

A prefix of 2,048 tokens that takes 80 ms and holds 512 MiB breaks even at 0.078 reuses a
second: one a minute is too few, twenty a second are plenty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from prefold.errors import InvalidInputError

T = TypeVar("T")

GIB = 2**30

#: Best and worst prefixes that are named.
NUM_NAMED = 10

#: A usual accelerator's memory, where nobody says what the machine has.
DEFAULT_MACHINE_BYTES = 80 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrice:
    """What memory has to save to be worth it.

    Attributes:
        machine_bytes: All memory of the machine that could hold KV.

    Raises:
        InvalidInputError: It has none.
    """

    machine_bytes: float = DEFAULT_MACHINE_BYTES

    def __post_init__(self) -> None:
        if not 0 < self.machine_bytes < math.inf:
            raise InvalidInputError(
                f"a machine's memory must be above 0 bytes, got {self.machine_bytes}"
            )

    @property
    def ms_per_gib_s(self) -> float:
        """Milliseconds of prefill that a GiB must save for each second it is held."""
        return 1000.0 * GIB / self.machine_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """A prefix, what one reuse of it saves, and how often that happens.

    Attributes:
        saved_ms: Prefill that one reuse spares.
        held_bytes: Of its KV, while it is cached.
        per_s: Reuses a second.

    Raises:
        InvalidInputError: One of them is negative or no number.
    """

    saved_ms: float
    held_bytes: float
    per_s: float

    def __post_init__(self) -> None:
        for value in (self.saved_ms, self.held_bytes, self.per_s):
            if not 0 <= value < math.inf:
                raise InvalidInputError(f"a reuse's figures must be 0 or more, got {value}")

    @property
    def saved_ms_per_s(self) -> float:
        return self.saved_ms * self.per_s

    @property
    def saved_ms_per_gib_s(self) -> float:
        """Milliseconds saved a second by each GiB held; infinite where nothing is held."""
        return ratio(self.saved_ms_per_s, self.held_bytes / GIB)

    def break_even_per_s(self, price: MemoryPrice) -> float:
        """Return the reuses a second from which it pays; infinite if none would do."""
        return ratio(price.ms_per_gib_s * self.held_bytes / GIB, self.saved_ms)

    def pays(self, price: MemoryPrice) -> bool:
        """Whether it saves at least what its memory costs, and anything at all."""
        return self.saved_ms_per_s > 0 and self.per_s >= self.break_even_per_s(price)


def best_and_worst(ordered: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the first few and, from the last on, the last few; none is in both.

    Args:
        ordered: The best first.
    """
    num_best = min(NUM_NAMED, (len(ordered) + 1) // 2)
    return ordered[:num_best], ordered[num_best:][: -NUM_NAMED - 1 : -1]


def ratio(amount: float, per: float) -> float:
    """Return ``amount / per``; nothing of nothing is 0, something of nothing infinite."""
    if per == 0:
        return math.inf if amount > 0 else 0.0
    return amount / per
