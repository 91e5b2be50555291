"""Mark: the approval that lets others read a run, as the tree sees it."""

from __future__ import annotations

import math


class Mark:
    """One approval's hold on the nodes of its path. Compared by identity.

    Attributes:
        expires_at: When it ends by itself, on the cache's clock.
        is_withdrawn: Whether it was taken back; set before it is taken off its nodes.
    """

    __slots__ = ("expires_at", "is_withdrawn")

    def __init__(self, expires_at: float = math.inf) -> None:
        self.expires_at = expires_at
        self.is_withdrawn = False

    def is_live(self, now: float) -> bool:
        return not self.is_withdrawn and now < self.expires_at


#: What nodes have that nothing was approved in; the same object for all of them.
NO_MARKS: frozenset[Mark] = frozenset()
