"""Tree node: a run of whole blocks, read by one audience.

::

    tokens     t0 .. tB-1 | tB .. t2B-1 | ...        num_tokens
    block_ids      b0     |      b1     | ...        num_blocks
               ^ start (token position of the run's first token)

A *partial leaf* is the one exception: a single block of which only the first
``num_tokens`` positions are filled. It has no children and is only ever copied from.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from prefold.blocks.table import TOKEN_DTYPE, BlockIds, TokenIds
from prefold.identity.block_key import ContentKey
from prefold.identity.domain import Audience, AudienceKind
from prefold.tree.account import Account
from prefold.tree.cohort import Cohort, Use
from prefold.tree.holding import NOBODY, Users
from prefold.tree.loss import Tombstone
from prefold.tree.mark import NO_MARKS, Mark

_Scalar = TypeVar("_Scalar", bound=np.generic)

_NO_TOKENS = np.empty(0, dtype=TOKEN_DTYPE)
_NO_BLOCKS = np.empty(0, dtype=np.int32)


class Readers:
    """One audience's present epoch in one tree, with its entries and running totals.

    Compared and hashed by identity, so that it can stand for its audience in child
    keys at no cost. Raising an audience's epoch retires this object and makes a new
    one: every key made with the old one is unreachable from that moment.

    Attributes:
        tree_id: Which tree of the cache.
        tree_epoch: The tree's epoch when this was made; another one means dead.
        is_approved: Whether its nodes can be read only where an approval marks them.
        is_retired: True once the audience's epoch was raised.
        entries: Nodes whose parent has another audience; where the audience begins.
        num_nodes: Nodes not yet freed.
        num_blocks: Blocks of those nodes.
        num_idle_blocks: Of those, the ones on no lease's path.
        account: Where these are counted too.
        num_tombstones: Tombstones of what it lost.
    """

    __slots__ = (
        "account",
        "audience",
        "entries",
        "is_approved",
        "is_retired",
        "num_blocks",
        "num_idle_blocks",
        "num_nodes",
        "num_tombstones",
        "tree_epoch",
        "tree_id",
    )

    def __init__(
        self, audience: Audience, tree_id: int, tree_epoch: int, account: Account
    ) -> None:
        self.audience = audience
        self.account = account
        self.tree_id = tree_id
        self.tree_epoch = tree_epoch
        self.is_approved = audience.kind is AudienceKind.APPROVED
        self.is_retired = False
        self.entries: set[Node] = set()
        self.num_nodes = 0
        self.num_blocks = 0
        self.num_idle_blocks = 0
        self.num_tombstones = 0

    @property
    def is_throwaway(self) -> bool:
        return self.audience.kind is AudienceKind.THROWAWAY

    def add_blocks(self, num_blocks: int, now: float, users: Users = NOBODY) -> None:
        """Note that so many blocks were published; negative: freed."""
        self.num_blocks += num_blocks
        self.account.num_blocks += num_blocks
        self.account.holding.note(num_blocks, now, users)

    def add_idle(self, num_blocks: int) -> None:
        """Note that so many blocks came idle; negative: went out of it."""
        self.num_idle_blocks += num_blocks
        self.account.num_idle += num_blocks


#: What a child is found by: who may read it, and its first block's tokens.
ChildKey = tuple[Readers, bytes]

#: Where children are found that agree in part of a block: audience and first token.
InnerKey = tuple[Readers, int]


class Node:
    """A run of blocks in the tree; changed only by ``PrefixTree``.

    Attributes:
        start: Position of the first token.
        count: Leases, copy pins and pinned approvals whose path passes through here.
        key: Where its parent files it; None for the root and for partial leaves.
        is_attached: False once unlinked from its parent; it keeps the parent pointer,
            so that its leases go on protecting live ancestors.
        created_at: When its oldest block was published.
        published_at: When its blocks were published, on average.
        users: Accounts that have used it, where others than its own may.
        last_used_at: When a lease last came or went.
        num_hits: Leases that began by matching it.
        num_partial: Partial leaves among its children.
        ticket: The eviction queue's mark of its newest entry; 0 for none.
        expires_at: When, unless it is in use, it cannot be reused any more.
        is_watched: Whether it is entered where expiries are watched.
        priority: Of two idle leaves of an account, the lower one goes first.
        is_ended: Whether its conversation has ended, so that it goes before others.
        wanted_until: Up to when a queued request is taken to be about to use it.
        cohort: The blocks it was last used with, while it waits for its next use.
        use: How it was used last; None while it was not, yet.
        num_forks: Requests that went on differently after it, or inside.
        gap_s: What lay between its last two uses; None before the second.
        contents: Content keys of its first blocks, as far as somebody asked for them.
        marks: The approvals it is part of; none in nodes that belong to one domain alone.
    """

    __slots__ = (
        # For whoever looks at it and must not keep it.
        "__weakref__",
        "_block_ids",
        "_tokens",
        "children",
        "cohort",
        "contents",
        "count",
        "created_at",
        "expires_at",
        "gap_s",
        "inner",
        "is_attached",
        "is_ended",
        "is_freed",
        "is_partial",
        "is_watched",
        "key",
        "last_used_at",
        "marks",
        "num_blocks",
        "num_forks",
        "num_hits",
        "num_partial",
        "num_tokens",
        "parent",
        "priority",
        "published_at",
        "readers",
        "start",
        "ticket",
        "tombstones",
        "use",
        "users",
        "wanted_until",
    )

    def __init__(
        self, *, readers: Readers, parent: Node | None, start: int, at: float
    ) -> None:
        self.readers = readers
        self.parent = parent
        self.start = start
        self.key: ChildKey | None = None
        self._tokens = _NO_TOKENS
        self._block_ids = _NO_BLOCKS
        self.num_tokens = 0
        self.num_blocks = 0
        # Most nodes are leaves; an empty dict each would be a third of their memory.
        self.children: dict[ChildKey, Node] | None = None
        self.inner: dict[InnerKey, list[Node]] | None = None
        self.tombstones: dict[ChildKey, Tombstone] | None = None
        self.contents: list[ContentKey] | None = None
        self.marks: frozenset[Mark] = NO_MARKS
        self.count = 0
        self.num_hits = 0
        self.num_partial = 0
        self.ticket = 0
        self.is_attached = True
        self.is_freed = False
        self.is_partial = False
        self.created_at = at
        self.published_at = at
        self.users = NOBODY
        self.last_used_at = at
        self.expires_at = math.inf
        self.is_watched = False
        self.priority = 0
        self.is_ended = False
        self.wanted_until = -math.inf
        self.cohort: Cohort | None = None
        self.use: Use | None = None
        self.num_forks = 0
        self.gap_s: float | None = None

    @property
    def tokens(self) -> TokenIds:
        return self._tokens[: self.num_tokens]

    @property
    def block_ids(self) -> BlockIds:
        return self._block_ids[: self.num_blocks]

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.num_tokens

    @property
    def is_root(self) -> bool:
        return self.parent is None

    @property
    def has_children(self) -> bool:
        return bool(self.children) or self.num_partial > 0

    @property
    def is_unmarked(self) -> bool:
        """Whether it was computed to be approved, and is not, or not any more."""
        return self.readers.is_approved and not self.marks and self.parent is not None

    @property
    def is_evictable(self) -> bool:
        """Whether its tail may be taken: on no lease's path and with nothing below."""
        return (
            self.count == 0
            and not self.is_freed
            and self.parent is not None
            and not self.has_children
        )

    def is_expired(self, now: float) -> bool:
        """Whether its time is over; never while a lease uses it."""
        return self.expires_at <= now and self.count == 0

    def set_run(self, tokens: TokenIds, block_ids: BlockIds) -> None:
        """Make the run these tokens and blocks; the arrays become the node's own."""
        self._tokens = tokens
        self._block_ids = block_ids
        self.num_tokens = len(tokens)
        self.num_blocks = len(block_ids)

    def append_run(self, tokens: TokenIds, block_ids: BlockIds, at: float) -> None:
        """Add whole blocks at the end; the arrays grow by doubling."""
        share = len(block_ids) / (self.num_blocks + len(block_ids))
        self.published_at += share * (at - self.published_at)
        self._tokens = _appended(self._tokens, self.num_tokens, tokens)
        self._block_ids = _appended(self._block_ids, self.num_blocks, block_ids)
        self.num_tokens += len(tokens)
        self.num_blocks += len(block_ids)

    def drop_tail(self, num_blocks: int, block_size: int) -> BlockIds:
        """Cut the last ``num_blocks`` whole blocks off and return their ids."""
        dropped = self.block_ids[self.num_blocks - num_blocks :].copy()
        self.num_blocks -= num_blocks
        self.num_tokens = min(self.num_tokens, self.num_blocks * block_size)
        if 2 * self.num_blocks < len(self._block_ids):
            # A trimmed run must not hold on to the memory of what it lost.
            self._tokens = self.tokens.copy()
            self._block_ids = self.block_ids.copy()
        if self.contents is not None:
            del self.contents[self.num_blocks :]
        return dropped

    def block_bytes(self, index: int, block_size: int) -> bytes:
        """Return the tokens of its block ``index`` as a key's bytes."""
        return self._tokens[index * block_size : (index + 1) * block_size].tobytes()


def _appended(
    buffer: npt.NDArray[_Scalar], length: int, more: npt.NDArray[_Scalar]
) -> npt.NDArray[_Scalar]:
    needed = length + len(more)
    if needed > len(buffer):
        grown = np.empty(max(needed, 2 * length), dtype=buffer.dtype)
        grown[:length] = buffer[:length]
        buffer = grown
    buffer[length:needed] = more
    return buffer
