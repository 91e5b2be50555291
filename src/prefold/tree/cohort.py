"""Cohort: blocks that one request used last, all in the same way.

What becomes of a cohort, be it reused, evicted or forgotten, is what an eviction policy
can learn from. Blocks leave it when another request uses them; those that were evicted
still count, since their being asked for again is what a policy wants to know.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefold.tree.account import Account


@dataclass(frozen=True, slots=True)
class Use:
    """How a request used its path, as far as the next one has to know.

    Attributes:
        at: When it ended, on the cache's clock.
        turn: How many requests before it, each extending the one before, led to it.
        num_positions: How long its path was, in positions of the cache.
    """

    at: float
    turn: int
    num_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a request was like.

    Attributes:
        turn: As in ``Use``.
        is_fork: Whether it begins like another one and goes on differently.
        num_new_tokens: Prompt tokens beyond what was known, be it cached or evicted.
        num_reply_tokens: Tokens it produced.
        gap_s: Since the request that it extends was over; None if it extends none.
    """

    turn: int
    is_fork: bool
    num_new_tokens: int
    num_reply_tokens: int
    gap_s: float | None


class Cohort:
    """Blocks last used by one request in one way; changed by the policy that made it.

    Attributes:
        use: The request's.
        account: Whose blocks they are.
        kind: The policy's number for this way of being used.
        num_blocks: Blocks it had at first.
        num_live: Those that nobody used since, evicted ones included.
        num_lost: Of those, the evicted ones that are remembered.
        age: The policy's number for how old it is.
    """

    __slots__ = ("account", "age", "kind", "num_blocks", "num_live", "num_lost", "use")

    def __init__(self, use: Use, account: Account, kind: int) -> None:
        self.use = use
        self.account = account
        self.kind = kind
        self.num_blocks = 0
        self.num_live = 0
        self.num_lost = 0
        self.age = 0

    def join(self, num_blocks: int) -> None:
        """Take blocks in, before anything is learned from it."""
        self.num_blocks += num_blocks
        self.num_live += num_blocks

    def leave(self, num_blocks: int) -> None:
        """Let blocks go that are no longer waiting for a next use."""
        self.num_live -= num_blocks
