"""Inner map: a node's children by their first token, for matches inside a block.

Each (audience, first token) lists at most four children, most recently used last.
A partial leaf is filed here only; pushed out, it is gone.
"""

from __future__ import annotations

from prefold.tree.node import InnerKey, Node

#: Children compared at most when a match ends inside a block.
MAX_CANDIDATES = 4


def inner_key(child: Node) -> InnerKey:
    """Return where a parent files ``child`` in its inner map."""
    return child.readers, int(child.tokens[0])


def is_filed(parent: Node, child: Node) -> bool:
    """Whether ``child`` is listed."""
    return child in (parent.inner or {}).get(inner_key(child), ())


def file_child(parent: Node, child: Node) -> Node | None:
    """File ``child`` as the most recently used; return the one pushed out, if any."""
    if parent.inner is None:
        parent.inner = {}
    listed = parent.inner.setdefault(inner_key(child), [])
    if child in listed:
        listed.remove(child)
    listed.append(child)
    return listed.pop(0) if len(listed) > MAX_CANDIDATES else None


def unfile_child(parent: Node, child: Node) -> None:
    """Take ``child`` out, if it is listed."""
    if parent.inner is None:
        return
    key = inner_key(child)
    listed = parent.inner.get(key)
    if listed is None or child not in listed:
        return
    listed.remove(child)
    if not listed:
        del parent.inner[key]
        if not parent.inner:
            parent.inner = None


def swap_child(parent: Node, old: Node, new: Node) -> None:
    """Let ``new``, which begins with the same tokens, take ``old``'s place."""
    if parent.inner is None:
        return
    listed = parent.inner.get(inner_key(old))
    if listed is not None and old in listed:
        listed[listed.index(old)] = new
