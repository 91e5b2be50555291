"""Known images: what was made of files that were sent before, so that they are not decoded.

A conversation sends its images again with every turn. Nothing large is kept: a digest, the
text that takes the place of a placeholder, and a grid. Files are known within a *scope*
only, that of whoever may share the KV: otherwise a quicker answer would tell one tenant
that another has sent the same picture.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from prefold.errors import InvariantError

#: Files that are known; at some kilobytes each.
MAX_KNOWN = 1_024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownImage:
    """What a file is to one model.

    Attributes:
        digest: Of the image.
        text: What takes the place of its placeholder.
        grid: Of its patches, where positions are counted by it.
    """

    digest: bytes
    text: str = field(repr=False)
    grid: torch.Tensor | None


class KnownImages:
    """The files read last. May be used by several threads.

    Invariants: at most ``MAX_KNOWN``.
    """

    __slots__ = ("_images", "_lock")

    def __init__(self) -> None:
        self._images: OrderedDict[Hashable, KnownImage] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> KnownImage | None:
        """Return what is known of a file; ``key`` is its scope and its digest."""
        with self._lock:
            found = self._images.get(key)
            if found is not None:
                self._images.move_to_end(key)
            return found

    def add(self, key: Hashable, image: KnownImage) -> None:
        """Remember a file, and forget the one that was used longest ago."""
        with self._lock:
            self._images[key] = image
            while len(self._images) > MAX_KNOWN:
                self._images.popitem(last=False)

    def check_invariants(self) -> None:
        """Raise ``InvariantError`` if more is kept than may be."""
        if len(self._images) > MAX_KNOWN:
            raise InvariantError(f"{len(self._images)} images are known")
