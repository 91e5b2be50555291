"""Account: whose idle blocks are counted together, for quotas."""

from __future__ import annotations

from collections.abc import Mapping

from prefold.tree.holding import Holding


class Account:
    """The idle blocks of one tenant, of all others, or of approved prefixes.

    Attributes:
        name: For people.
        num_reserved: Idle blocks that no other account's need takes.
        max_idle: Idle blocks it may have.
        num_blocks: Blocks it has in all.
        num_idle: Of those, on no lease's path; dead ones not yet swept included.
        holding: Its blocks, summed over time.
        is_shared: Whether others' requests use its blocks, and owe what they take.
    """

    __slots__ = (
        "holding",
        "is_shared",
        "max_idle",
        "name",
        "num_blocks",
        "num_idle",
        "num_reserved",
    )

    def __init__(
        self, name: str, *, num_reserved: int, max_idle: int, is_shared: bool = False
    ) -> None:
        self.name = name
        self.is_shared = is_shared
        self.holding = Holding()
        self.num_reserved = num_reserved
        self.max_idle = max_idle
        self.num_blocks = 0
        self.num_idle = 0

    def __repr__(self) -> str:
        return f"Account({self.name}, {self.num_idle} idle)"

    def block_s(self, now: float) -> Mapping[str | None, float]:
        """Return who owes how many block-seconds; None for what nobody used."""
        owed = self.holding.block_s(now)
        return owed if self.is_shared else {self.name: sum(owed.values())}

    @property
    def num_protected(self) -> int:
        """Idle blocks that others cannot have."""
        return min(self.num_idle, self.num_reserved)

    @property
    def num_excess(self) -> int:
        """Idle blocks above its maximum."""
        return max(self.num_idle - self.max_idle, 0)
