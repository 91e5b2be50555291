"""Access: what a request may do with the cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whether a request may reuse cached KV, and whether it may leave some behind."""

    read: bool
    write: bool


READ_WRITE = Access(read=True, write=True)
NO_CACHE = Access(read=False, write=False)
