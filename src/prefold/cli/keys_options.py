"""Options of ``prefold keys``: what was asked for, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The prefold.toml that names the key file and the tenants. "
        "[default: $PREFOLD_CONFIG, or prefold.toml in this directory]",
    ),
]
_KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help="The key file. [default: $PREFOLD_KEY_FILE, the configuration's, or "
        "api_keys.json in the user's state directory]",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPlace:
    """Where the keys are kept; None leaves it to the environment or the default.

    Attributes:
        config: The ``prefold.toml`` that names the key file and the tenants.
        key_file: The key file itself.
    """

    config: _Config = None
    key_file: _KeyFile = None


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
