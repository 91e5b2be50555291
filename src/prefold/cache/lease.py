"""Lease: one sequence's hold on blocks, from acquire to release.

::

    block_ids   [ matched and published | private, computed | private, reserved ]
                  pinned in the tree      not findable yet    no content yet
"""

from __future__ import annotations

from dataclasses import dataclass

from prefold.blocks.table import (
    TOKEN_DTYPE,
    BlockCopy,
    BlockId,
    BlockIds,
    BlockTable,
    TokenIds,
)
from prefold.cache.access import Access
from prefold.cache.explain import MissReason
from prefold.cache.frontier_key import FrontierKey
from prefold.cache.use_start import Recorded, UseStart
from prefold.errors import InvalidInputError, LeaseReleasedError
from prefold.identity.domain import Audience
from prefold.tree.account import Account
from prefold.tree.node import Node
from prefold.tree.path import path_ids
from prefold.tree.prefix_tree import PrefixTree
from prefold.tree.retention import Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """What a lease was asked for with; its forks have the same.

    Attributes:
        audiences: Whose KV it reads, wide to narrow; the last, writes.
        account: For whose need blocks are taken.
        retention: How what it uses and leaves behind is kept.
    """

    audiences: tuple[Audience, ...]
    access: Access
    account: Account
    retention: Retention


class Lease:
    """What a running sequence holds. Callers only read it; the cache changes it.

    Attributes:
        node: Where its published part ends in the tree.
        num_published: Published or matched blocks, the first ones of its table.
        num_hit_tokens: Tokens whose KV was there at ``acquire``: whole blocks, and what
            the pending copy brings. Falls if that copy is dropped.
        copy_source: The pinned node whose block is to be copied from.
        started_at: When it, or what it was forked from, was acquired.
        throwaway: Where it publishes if it must not publish to anybody.
        start: How it began; None until it is acquired.
        recorded: What its tokens do not tell; set only by who replays a trace.
        is_doomed: Whether what it holds was invalidated while it runs.
        frontier_key: Where its frontier is filed.
    """

    __slots__ = (
        "copy_source",
        "frontier_key",
        "is_doomed",
        "is_released",
        "miss",
        "node",
        "num_copy_tokens",
        "num_matched_tokens",
        "num_published",
        "recorded",
        "start",
        "started_at",
        "table",
        "terms",
        "throwaway",
        "tokens",
        "tree",
    )

    def __init__(
        self,
        *,
        tree: PrefixTree,
        terms: LeaseTerms,
        tokens: TokenIds,
        miss: MissReason,
        started_at: float,
    ) -> None:
        self.tree = tree
        self.terms = terms
        self.tokens = tokens
        self.miss = miss
        self.started_at = started_at
        self.node: Node = tree.root
        self.table = BlockTable(path_ids(tree.root, below=tree.root))
        self.num_published = 0
        self.num_matched_tokens = 0
        self.copy_source: Node | None = None
        self.num_copy_tokens = 0
        self.throwaway: Audience | None = None
        self.is_doomed = False
        self.frontier_key: FrontierKey | None = None
        self.is_released = False
        self.start: UseStart | None = None
        self.recorded: Recorded | None = None

    def __repr__(self) -> str:
        return f"Lease({len(self.table)} blocks, {self.num_published} published)"

    @property
    def audiences(self) -> tuple[Audience, ...]:
        return self.terms.audiences

    @property
    def access(self) -> Access:
        return self.terms.access

    @property
    def account(self) -> Account:
        return self.terms.account

    @property
    def retention(self) -> Retention:
        return self.terms.retention

    @property
    def block_ids(self) -> BlockIds:
        """Physical block ids in order, as a view that later calls may change."""
        return self.table.ids

    @property
    def num_published_tokens(self) -> int:
        return self.num_published * self.tree.block_size

    @property
    def num_hit_tokens(self) -> int:
        return self.num_matched_tokens + self.num_copy_tokens

    @property
    def own_audience(self) -> Audience:
        """Whom it publishes for."""
        return self.audiences[-1] if self.throwaway is None else self.throwaway

    @property
    def pending_copy(self) -> BlockCopy | None:
        """The copy to carry out before the next step, once its target is reserved."""
        index = self.num_matched_tokens // self.tree.block_size
        # A caller that computed the block itself may have published it meanwhile.
        if self.copy_source is None or not self.num_published <= index < len(self.table):
            return None
        return BlockCopy(
            # It was pinned with one block, and may have been joined with what is before it.
            source=BlockId(int(self.copy_source.block_ids[-1])),
            target=BlockId(int(self.table.ids[index])),
            num_tokens=self.num_copy_tokens,
        )

    def check_live(self) -> None:
        """Refuse a released lease.

        Raises:
            LeaseReleasedError: It was released before.
        """
        if self.is_released:
            raise LeaseReleasedError("the lease was released before")

    def check_computed(self, tokens: TokenIds, computed: int) -> None:
        """Refuse what cannot have been computed.

        Raises:
            InvalidInputError: ``tokens`` are not int64, or ``computed`` exceeds them or
                the reserved blocks, or falls below what is published.
        """
        if tokens.dtype != TOKEN_DTYPE:
            raise InvalidInputError(f"tokens must be an int64 array, got {tokens.dtype}")
        limit = min(len(tokens), len(self.table) * self.tree.block_size)
        if not self.num_published_tokens <= computed <= limit:
            raise InvalidInputError(
                f"computed must be from {self.num_published_tokens} (published) to "
                f"{limit} (known and reserved), got {computed}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A new lease that shares everything computed so far.

    Attributes:
        copy: The partial tail's copy, to be carried out at once; None if there is none.
    """

    lease: Lease
    copy: BlockCopy | None
