"""Known names: the first so many names that came up, as labels of a metric.

Names of adapters are an operator's, but a server that runs for long may see any number of
them come and go, and each would be a series for ever.
"""

from __future__ import annotations

#: A few times what can be loaded at once.
MAX_NAMES = 1024


class KnownNames:
    """Decides which names may be labels. One thread.

    Args:
        other: Stands for all that came too late.
    """

    __slots__ = ("_known", "_other")

    def __init__(self, other: str) -> None:
        self._known: set[str] = set()
        self._other = other

    def label(self, name: str) -> str:
        """Return a name, or what stands for it."""
        if name not in self._known:
            if len(self._known) >= MAX_NAMES:
                return self._other
            self._known.add(name)
        return name
