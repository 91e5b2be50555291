"""Holding: blocks that an account has, summed over time, and whose use of them it is.

Blocks of one domain are that domain's. Blocks of an approved prefix are used by several,
and what they take is split equally between those who have used them so far: of n users
each owes the n-th part of every second from when it became one of them. Nobody owes what
nobody used.

No clock runs for it: n blocks that come at t and go at u were held for n * u - n * t, so
each event adds or takes its own product, whichever blocks they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from prefold.errors import InvariantError

#: Names of those who have used some blocks.
Users = frozenset[str]

NOBODY: Users = frozenset()


class Holding:
    """Block-seconds of one account. Owned by it.

    Memory: a number for every user, and two for every set of users that has blocks now.

    Invariants: no set of users has fewer than no blocks.
    """

    __slots__ = ("_blocks", "_by_user", "_offsets")

    def __init__(self) -> None:
        self._blocks: defaultdict[Users, int] = defaultdict(int)
        # Blocks times the times at which they went, less those at which they came.
        self._offsets: defaultdict[Users, float] = defaultdict(float)
        # What sets that have no blocks any more had held; None for what nobody used.
        self._by_user: defaultdict[str | None, float] = defaultdict(float)

    def note(self, num_blocks: int, now: float, users: Users = NOBODY) -> None:
        """Note that so many blocks of these users came; negative: went. O(1)."""
        self._blocks[users] += num_blocks
        self._offsets[users] -= num_blocks * now
        if self._blocks[users] == 0:
            del self._blocks[users]
            for user, share in _split(users, self._offsets.pop(users)):
                self._by_user[user] += share

    def move(self, num_blocks: int, now: float, before: Users, after: Users) -> None:
        """Note that blocks have other users from now on."""
        self.note(-num_blocks, now, before)
        self.note(num_blocks, now, after)

    def num_blocks(self, users: Users) -> int:
        """Return how many blocks have exactly these users."""
        return self._blocks.get(users, 0)

    def block_s(self, now: float) -> Mapping[str | None, float]:
        """Return the block-seconds that each user owes; None for what nobody used."""
        owed = self._by_user.copy()
        for users, num_blocks in self._blocks.items():
            for user, share in _split(users, self._offsets[users] + num_blocks * now):
                owed[user] += share
        return owed

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if blocks went that never came."""
        if any(num_blocks < 0 for num_blocks in self._blocks.values()):
            raise InvariantError("more blocks went than came")


def _split(users: Users, block_s: float) -> Iterator[tuple[str | None, float]]:
    if not users:
        yield None, block_s
    for user in users:
        yield user, block_s / len(users)
