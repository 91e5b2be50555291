"""Announcement: what there is to say when a server is ready."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Where a server is, and what it serves.

    Attributes:
        exactness: Whether equal bits with and without the cache are promised, as a
            sentence.
        token_file: Where the admin token is; never the token.
        key_file: Where the tenants' keys are kept, as hashes.
        num_tenants: 0 where everybody on this machine is served without a key.
    """

    public_url: str
    admin_url: str
    model: str
    cache_tokens: int
    cache_bytes: int
    exactness: str
    token_file: Path
    key_file: Path
    num_tenants: int

    def to_json(self) -> dict[str, object]:
        """Return it as a value of plain numbers and texts."""
        return {
            "public_url": self.public_url,
            "admin_url": self.admin_url,
            "model": self.model,
            "cache_tokens": self.cache_tokens,
            "cache_bytes": self.cache_bytes,
            "exactness": self.exactness,
            "admin_token_file": str(self.token_file),
            "key_file": str(self.key_file),
            "tenants": self.num_tenants,
        }
