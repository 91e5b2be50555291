"""Key index: which live block a block key names.

Nothing in the process is found by a key, so none is made unless somebody outside
asks: tiers, events, routers. Content keys are kept with the nodes, and the keys that
were asked for are remembered with where they were found, checked on every use.
"""

from __future__ import annotations

from prefold.blocks.table import BlockId, TokenIds
from prefold.cache.access import READ_WRITE
from prefold.cache.contents import ContentIds
from prefold.cache.trees import Trees
from prefold.identity.block_key import (
    BlockKey,
    ContentKey,
    block_key,
    extend_content,
    root_content,
)
from prefold.identity.domain import Audience, Domain
from prefold.identity.fingerprint import Fingerprint
from prefold.identity.secret import MasterSecret
from prefold.tree.node import Node
from prefold.tree.prefix_tree import PrefixTree

#: Places remembered; the oldest is forgotten first.
MAX_REMEMBERED = 65_536


class KeyIndex:
    """Block keys of the nodes of all trees. Owned by the cache.

    Invariants:
        - a remembered place is only a hint: what it says is checked before it is used
    """

    __slots__ = ("_domain_keys", "_places", "_secret", "_trees", "contents")

    def __init__(self, secret: MasterSecret, trees: Trees) -> None:
        self._secret = secret
        #: What stands in token arrays for images and embeddings.
        self.contents = ContentIds(trees.token_arrays)
        self._trees = trees
        self._domain_keys: dict[Audience, bytes] = {}
        self._places: dict[BlockKey, tuple[PrefixTree, Node, int]] = {}

    def key_of(self, audience: Audience, content: ContentKey) -> BlockKey:
        """Return the key under which ``audience`` knows a block."""
        domain_key = self._domain_keys.get(audience)
        if domain_key is None:
            if len(self._domain_keys) >= MAX_REMEMBERED:
                self._domain_keys.clear()
            domain_key = self._domain_keys[audience] = self._secret.domain_key(audience)
        return block_key(domain_key, content)

    def of(
        self, fingerprint: Fingerprint, domain: Domain, tokens: TokenIds
    ) -> list[BlockKey]:
        """Return the keys under which ``domain`` keeps the whole blocks of ``tokens``."""
        self.contents.check(tokens)
        audience = READ_WRITE.audiences(domain)[-1]
        root = root_content(fingerprint)
        spans = self.contents.spans(tokens)
        contents = extend_content(root, tokens, fingerprint.block_size, spans)
        return [self.key_of(audience, content) for content in contents]

    def find(self, key: BlockKey) -> BlockId | None:
        """Return a live block with that key, or None; several may have it.

        O(depth) for a key found before and still there, else O(all cached tokens).
        """
        trees = self._trees.roots()
        place = self._places.get(key)
        if place is not None:
            tree, node, index = place
            if tree in trees and self._is_at(key, tree, node, index, trees[tree]):
                return BlockId(int(node.block_ids[index]))
            del self._places[key]
        for tree, root in trees.items():
            found = self._search(key, tree, root)
            if found is not None:
                if len(self._places) >= MAX_REMEMBERED:
                    del self._places[next(iter(self._places))]
                self._places[key] = (tree, *found)
                return BlockId(int(found[0].block_ids[found[1]]))
        return None

    def _is_at(
        self, key: BlockKey, tree: PrefixTree, node: Node, index: int, root: ContentKey
    ) -> bool:
        if node.is_freed or index >= node.num_blocks or tree.audiences.is_doomed(node):
            return False
        if not tree.view(()).is_open(node):
            return False
        content = self._contents(tree, node, root)[index]
        return self.key_of(node.readers.audience, content) == key

    def _search(
        self, key: BlockKey, tree: PrefixTree, root: ContentKey
    ) -> tuple[Node, int] | None:
        pending = list((tree.root.children or {}).values())
        view = tree.view(())
        while pending:
            node = pending.pop()
            if tree.audiences.is_dead(node) or node.readers.is_throwaway:
                continue
            contents = self._contents(tree, node, root) if view.is_open(node) else []
            for index, content in enumerate(contents):
                if self.key_of(node.readers.audience, content) == key:
                    return node, index
            pending.extend((node.children or {}).values())
        return None

    def _contents(self, tree: PrefixTree, node: Node, root: ContentKey) -> list[ContentKey]:
        # From the root down, without recursion: a path may be thousands of nodes long.
        path: list[Node] = []
        at: Node | None = node
        while at is not None and at.parent is not None:
            path.append(at)
            at = at.parent
        before = root
        contents: list[ContentKey] = []
        for at in reversed(path):
            contents = at.contents if at.contents is not None else []
            known = len(contents)
            if known < at.num_blocks:
                last = contents[-1] if contents else before
                rest = at.tokens[known * tree.block_size :]
                spans = self.contents.spans(rest)
                contents = contents + extend_content(last, rest, tree.block_size, spans)
                at.contents = contents
            before = contents[-1]
        return contents
