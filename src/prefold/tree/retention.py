"""Retention: what a request wishes for the KV that it uses and leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prefold.errors import InvalidInputError

#: Priorities go from minus this to this.
MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long, and how dearly, the KV of a domain's own requests is kept.

    Where requests that use the same KV disagree, the longest time and the highest priority
    hold. Approved prefixes are kept as their approval says, whoever reads them.

    Attributes:
        ttl_s: Seconds after its last use in which it may be reused; ``inf`` for as long as
            there is room.
        priority: Of two idle leaves of one account, the lower one goes first.
        ends_conversation: Whether nothing is expected to follow on this request: what
            only its conversation uses then goes before everything else of the account.

    Raises:
        InvalidInputError: A value has another type or lies outside its range.
    """

    ttl_s: float = math.inf
    priority: int = 0
    ends_conversation: bool = False

    def __post_init__(self) -> None:
        ttl_s: object = self.ttl_s
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not ttl_s > 0:
            raise InvalidInputError("ttl_s must be a number of seconds above 0")
        priority: object = self.priority
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidInputError("the cache priority must be a whole number")
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidInputError(
                f"the cache priority must be from {-MAX_PRIORITY} to {MAX_PRIORITY}, "
                f"got {self.priority}"
            )
        if not isinstance(self.ends_conversation, bool):
            raise InvalidInputError("ends_conversation must be true or false")


#: As long as there is room, like everything else.
KEEP = Retention()
