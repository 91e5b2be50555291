"""API key records: what is kept of each key, and how they stand in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields

from prefold.errors import ConfigError
from prefold.server.config import check_tenant_name

MAX_LABEL_LENGTH = 100

#: The end of the year 9999, the last that a date can be written for.
MAX_TIME = 253_402_300_799

PUBLIC_ID = re.compile(r"[0-9a-f]{16}")

_FORMAT = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key; its secret is not.

    Attributes:
        public_id: Names the key in logs and commands.
        digest: SHA-256 of the whole key, hexadecimal.
        tenant: Who it speaks for.
        created_at: Seconds since the epoch, as ``expires_at``.
        expires_at: When it stops being valid; None for never.
        label: What its owner calls it.
    """

    public_id: str
    digest: str = field(repr=False)
    tenant: str
    created_at: int
    expires_at: int | None = None
    label: str | None = None

    def is_expired(self, now: float) -> bool:
        """Tell whether it is valid no longer."""
        return self.expires_at is not None and now >= self.expires_at


_FIELDS = {f.name for f in fields(ApiKey)}


def format_keys(entries: Iterable[ApiKey]) -> bytes:
    """Return what a file with these keys holds."""
    document = {"format": _FORMAT, "keys": [asdict(entry) for entry in entries]}
    return (json.dumps(document, indent=1) + "\n").encode()


def parse_keys(data: bytes) -> dict[str, ApiKey]:
    """Read the document strictly: half the keys are no keys.

    Raises:
        ValueError: It is damaged, or of another release; so do ``TypeError``,
            ``KeyError`` and ``RecursionError`` say.
    """
    document = json.loads(data)
    if document["format"] != _FORMAT or document.keys() != {"format", "keys"}:
        raise ValueError("of another release")
    entries = [_parse_entry(entry) for entry in document["keys"]]
    keys = {entry.public_id: entry for entry in entries}
    if len(keys) != len(entries):
        raise ValueError("two keys with one id")
    return keys


def _parse_entry(entry: object) -> ApiKey:
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise ValueError("not those fields")
    tenant = _text(entry["tenant"])
    check_tenant_name(tenant)
    expires_at, label = entry["expires_at"], entry["label"]
    if label is not None:
        check_label(_text(label))
    return ApiKey(
        public_id=_matching(PUBLIC_ID, entry["public_id"]),
        digest=_matching(_DIGEST, entry["digest"]),
        tenant=tenant,
        created_at=_instant(entry["created_at"]),
        expires_at=None if expires_at is None else _instant(expires_at),
        label=None if label is None else _text(label),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    text = _text(value)
    if not pattern.fullmatch(text):
        raise ValueError("not of that form")
    return text


def _instant(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a number")
    if not 0 <= value <= MAX_TIME:
        raise ValueError("not a time")
    return value


def check_label(label: str | None) -> None:
    """Raise ``ConfigError`` if no key can have that label."""
    if label is not None and not (
        0 < len(label) <= MAX_LABEL_LENGTH and label.isprintable()
    ):
        raise ConfigError(
            f"a label is 1 to {MAX_LABEL_LENGTH} printable characters on one line"
        )
