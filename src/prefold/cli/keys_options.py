"""Options of ``prefold keys``: what was asked for, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlace:
    """Where the keys are kept; None leaves it to the environment or the default.

    Attributes:
        config: The ``prefold.toml`` that names the key file and the tenants.
        key_file: The key file itself.
    """

    config: Path | None
    key_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeyOptions:
    """What ``keys new`` is to do.

    Attributes:
        expires_in: Such as "90d"; None for never.
    """

    tenant: str
    label: str | None
    expires_in: str | None
    place: KeyPlace
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListKeysOptions:
    """What ``keys list`` is to do.

    Attributes:
        tenant: Whose keys; None for all.
    """

    tenant: str | None
    place: KeyPlace
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeKeyOptions:
    """What ``keys revoke`` is to do.

    Attributes:
        key: The key's id, or more of it.
    """

    key: str
    place: KeyPlace
    as_json: bool
