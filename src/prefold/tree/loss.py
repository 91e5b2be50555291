"""Loss: why cached blocks are gone, and what is kept of that to explain later misses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prefold.tree.lost import LostRun


class LossCause(Enum):
    """Why cached blocks are no longer there."""

    EVICTED = "evicted"
    INVALIDATED = "invalidated"
    #: They may be there still, but nobody may end a match in them.
    WITHDRAWN = "withdrawn"
    #: They were not used again in time.
    EXPIRED = "expired"
    #: As withdrawn, because the approval's own time is over.
    LAPSED = "lapsed"


class Pressure(Enum):
    """Whose need of room evicted something; never says which other tenant's."""

    #: A request of the same tenant needed blocks.
    OWN = "own"
    #: The tenant had more idle blocks than its maximum.
    SHARE = "share"
    #: Somebody who shares the pool needed blocks.
    POOL = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What was lost at one place of the tree; kept to explain later misses.

    Attributes:
        at: When, on the cache's clock.
        policy: The eviction policy that chose it; None if none did.
        pressure: For whom it was evicted; None if it was not.
        selector: What kind of selector covered it; None if none did.
        num_blocks: Blocks lost at and below the place, as far as they were counted.
        lost: What is remembered of them, along one path.
    """

    at: float
    cause: LossCause
    policy: str | None
    num_blocks: int
    pressure: Pressure | None = None
    selector: str | None = None
    lost: tuple[LostRun, ...] = ()
