"""Holdings: what cached blocks took over time, by account and by prefix, as values.

A prefix is a run of the tree, with what comes before it: what is said of memory is said of
the run's own blocks, so that no block counts twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from prefold.cache.room import Room
from prefold.tree.dead import all_children
from prefold.tree.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPrefix:
    """A run that is cached now.

    Attributes:
        domain: Path of the domain that its readers belong to; never its salt.
        start: Position of its first token.
        end: Position after its last.
        num_blocks: Of its own.
        num_hits: Requests that began by matching it.
        age_s: Since its oldest block was published.
        block_s: Its blocks, each with the seconds since it was published.
    """

    domain: str
    start: int
    end: int
    num_blocks: int
    num_hits: int
    age_s: float
    block_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Block-seconds since the start.

    Attributes:
        by_account: What each account owes, its fair share of approved prefixes included;
            None for approved prefixes that nobody used.
        prefixes: Those that can be found now, from the beginnings of prompts outwards.
        is_complete: Whether these are all there are.
    """

    by_account: Mapping[str | None, float]
    prefixes: tuple[HeldPrefix, ...] = field(repr=False)
    is_complete: bool

    @property
    def block_s(self) -> float:
        """All of it."""
        return sum(self.by_account.values())


def take_holdings(room: Room, now: float, *, max_prefixes: int) -> Holdings:
    """Return what was held until ``now``, on the cache's clock. O(nodes looked at)."""
    owed: dict[str | None, float] = {}
    for account in room.quotas.accounts():
        for user, block_s in account.block_s(now).items():
            owed[user] = owed.get(user, 0.0) + block_s
    prefixes: list[HeldPrefix] = []
    waiting: deque[Node] = deque()
    for tree in room.trees:
        waiting.extend(all_children(tree.root))
    while waiting and len(prefixes) < max_prefixes:
        node = waiting.popleft()
        if not room.is_dead(node):
            prefixes.append(_held(node, now))
            waiting.extend(all_children(node))
    return Holdings(by_account=owed, prefixes=tuple(prefixes), is_complete=not waiting)


def _held(node: Node, now: float) -> HeldPrefix:
    return HeldPrefix(
        domain=node.readers.audience.domain.path,
        start=node.start,
        end=node.end,
        num_blocks=node.num_blocks,
        num_hits=node.num_hits,
        age_s=max(now - node.created_at, 0.0),
        block_s=max(now - node.published_at, 0.0) * node.num_blocks,
    )
