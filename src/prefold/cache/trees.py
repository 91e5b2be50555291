"""Trees: one prefix tree per fingerprint, over one pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from prefold.blocks.pool import BlockPool
from prefold.blocks.table import TokenIds
from prefold.cache.explain import MissKind, MissReason
from prefold.cache.listing import CacheListing, ListingBounds, list_runs
from prefold.errors import ConfigError
from prefold.identity.block_key import ContentKey, root_content
from prefold.identity.domain import Audience
from prefold.identity.fingerprint import Fingerprint
from prefold.tree.account import Account
from prefold.tree.invalidation import bury_too_old, kill_expired, nodes_below
from prefold.tree.mark import Mark
from prefold.tree.node import Readers
from prefold.tree.prefix_tree import PrefixTree

#: Tombstones a tree keeps at most: explanations must not become a second cache.
MAX_TOMBSTONES = 16_384

#: With these, nothing is known of the block that was missed.
_UNKNOWN = (MissKind.NEVER_SEEN, MissKind.DIVERGED)


class Trees:
    """The trees of one cache, made when their fingerprint is first used."""

    __slots__ = (
        "_account_of",
        "_by_fingerprint",
        "_clock",
        "_in_order",
        "_pool",
        "block_size",
    )

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        clock: Callable[[], float],
        account_of: Callable[[Audience], Account],
    ) -> None:
        self._pool = pool
        self._account_of = account_of
        self.block_size = block_size
        self._clock = clock
        self._by_fingerprint: dict[Fingerprint, PrefixTree] = {}
        self._in_order: list[PrefixTree] = []

    def of(self, fingerprint: Fingerprint) -> PrefixTree:
        """Return the tree of a fingerprint, made if there is none.

        Raises:
            ConfigError: The fingerprint is of another block size.
        """
        tree = self.peek(fingerprint)
        if fingerprint not in self._by_fingerprint:
            self._by_fingerprint[fingerprint] = tree
            self._in_order.append(tree)
        return tree

    def peek(self, fingerprint: Fingerprint) -> PrefixTree:
        """Return the tree of a fingerprint; an empty one, not kept, if there is none.

        Raises:
            ConfigError: The fingerprint is of another block size.
        """
        tree = self._by_fingerprint.get(fingerprint)
        if tree is not None:
            return tree
        if fingerprint.block_size != self.block_size:
            raise ConfigError(
                f"the cache has blocks of {self.block_size} tokens, the fingerprint is "
                f"for {fingerprint.block_size}"
            )
        return PrefixTree(
            tree_id=len(self._in_order),
            pool=self._pool,
            block_size=self.block_size,
            clock=self._clock,
            max_tombstones=MAX_TOMBSTONES,
            account_of=self._account_of,
        )

    def all(self) -> list[PrefixTree]:
        return self._in_order

    def fingerprint_of(self, tree: PrefixTree) -> Fingerprint:
        """Return what a tree of this cache is for. O(trees)."""
        [its] = (fp for fp, each in self._by_fingerprint.items() if each is tree)
        return its

    def where(self, is_meant: Callable[[Fingerprint], bool]) -> list[PrefixTree]:
        """Return the trees of the fingerprints that are meant."""
        return [tree for fp, tree in self._by_fingerprint.items() if is_meant(fp)]

    def bury_too_old(self) -> None:
        """Go on unlinking what an age cut-off made dead, some nodes of each tree."""
        for tree in self._in_order:
            if tree.age_cursor:
                bury_too_old(tree)

    def kill_expired(self) -> None:
        """Unlink what was not used again in time. O(nodes that die)."""
        for tree in self._in_order:
            if tree.expiries:
                kill_expired(tree, self._clock())

    def holding(self, readers: Readers) -> PrefixTree:
        """Return the tree whose audience ``readers`` is."""
        return self._in_order[readers.tree_id]

    def listing(
        self, bounds: ListingBounds, label_by_mark: Mapping[Mark, str]
    ) -> CacheListing:
        """Return what they hold, as far as the bounds go. Changes nothing."""
        return list_runs(self._in_order, bounds, self._clock(), label_by_mark)

    def token_arrays(self) -> Iterator[TokenIds]:
        """Yield the tokens of every node that can still be found; views."""
        for tree in self._in_order:
            for node in nodes_below(tree, (tree.root,)):
                yield node.tokens

    def roots(self) -> dict[PrefixTree, ContentKey]:
        """Return every tree with the content key that roots its chain."""
        return {tree: root_content(fp) for fp, tree in self._by_fingerprint.items()}

    def explain(
        self,
        fingerprint: Fingerprint,
        audiences: Sequence[Audience],
        tokens: TokenIds,
        miss: MissReason,
    ) -> MissReason:
        """Refine the reason where another fingerprint's tree has the first block.

        That it is there outranks that others begin with some of its tokens here: with one
        template, all prompts do.
        """
        if miss.kind not in _UNKNOWN or miss.at_token >= self.block_size:
            return miss
        first = tokens[: self.block_size].tobytes()
        for other, tree in self._by_fingerprint.items():
            if other == fingerprint or not tree.root.children:
                continue
            view = tree.view(audiences)
            children = (
                view.child(tree.root, rank, first) for rank in range(len(view.readable))
            )
            if any(child is not None and view.is_open(child) for child in children):
                return replace(
                    miss,
                    kind=MissKind.OTHER_FINGERPRINT,
                    differing_fields=fingerprint.diff(other),
                )
        return miss
