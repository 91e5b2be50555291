"""The work of ``prefold keys``: changes to the key file, and what is shown of it.

The key itself is the only thing on standard output of ``keys new``, so that a script can
take it from there; what a person should know about it is on standard error.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from prefold.cli.keys_options import (
    KeyPlace,
    ListKeysOptions,
    NewKeyOptions,
    RevokeKeyOptions,
)
from prefold.errors import InvalidInputError
from prefold.server.config import PrefoldConfig, nearest
from prefold.server.config_file import find_config, load_config
from prefold.server.key_records import ApiKey
from prefold.server.keys import KeyFile, default_key_path

_DURATION = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def run_new(options: NewKeyOptions) -> int:
    """Make a key and print it."""
    expires_in_s = None if options.expires_in is None else _seconds(options.expires_in)
    path, config = _locate(options.place)
    _check_tenant(options.tenant, config)
    made = KeyFile(path).create(
        options.tenant,
        label=options.label,
        expires_at=None if expires_in_s is None else int(time.time()) + expires_in_s,
    )
    if options.as_json:
        _print_json({"key": made.text, **_describe(made.entry)})
        return 0
    print(made.text, flush=True)
    _note(
        f"This is the only time the key is shown; {path} keeps a hash of it. "
        "Running servers know it within five seconds."
    )
    if not config.tenants:
        _note(
            "No tenants are configured here: the key is of use to a server whose "
            f'configuration has [[tenants]] with name = "{options.tenant}".'
        )
    return 0


def run_list(options: ListKeysOptions) -> int:
    """Print what is known of the keys."""
    path, _config = _locate(options.place)
    entries = [
        entry for entry in KeyFile(path).entries() if options.tenant in (None, entry.tenant)
    ]
    if options.as_json:
        _print_json(
            {"key_file": str(path), "keys": [_describe(entry) for entry in entries]}
        )
    elif entries:
        _print_table(entries)
    else:
        whose = "" if options.tenant is None else f" of tenant {options.tenant!r}"
        _note(f"There are no keys{whose} in {path}.")
    return 0


def run_revoke(options: RevokeKeyOptions) -> int:
    """Remove a key."""
    path, _config = _locate(options.place)
    entry = KeyFile(path).revoke(options.key)
    if options.as_json:
        _print_json({"revoked": _describe(entry)})
    else:
        print(
            f"Key {entry.public_id} of tenant {entry.tenant} is revoked; running servers "
            "refuse it within five seconds."
        )
    return 0


def _locate(place: KeyPlace) -> tuple[Path, PrefoldConfig]:
    config = load_config(find_config(place.config))
    path = place.key_file or config.server.key_file or default_key_path()
    return path, config


def _check_tenant(tenant: str, config: PrefoldConfig) -> None:
    names = [configured.name for configured in config.tenants]
    if names and tenant not in names:
        raise InvalidInputError(
            f"there is no tenant {tenant!r} in the configuration; {nearest(tenant, names)}"
        )


def _seconds(duration: str) -> int:
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise InvalidInputError(
            f"--expires-in must be a number up to 99999 with m, h, d or w, such as 90d, "
            f"got {duration[:40]!r}"
        )
    return int(found[1]) * _SECONDS[found[2]]


def _describe(entry: ApiKey) -> Mapping[str, object]:
    return {
        "id": entry.public_id,
        "tenant": entry.tenant,
        "created": _date(entry.created_at),
        "expires": None if entry.expires_at is None else _date(entry.expires_at),
        "expired": entry.is_expired(time.time()),
        "label": entry.label,
    }


def _print_table(entries: Sequence[ApiKey]) -> None:
    rows = [("ID", "TENANT", "CREATED", "EXPIRES", "LABEL")]
    for entry in entries:
        expires = "never" if entry.expires_at is None else _date(entry.expires_at)
        rows.append(
            (
                entry.public_id,
                entry.tenant,
                _date(entry.created_at),
                "expired" if entry.is_expired(time.time()) else expires,
                entry.label or "",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_json(document: Mapping[str, object]) -> None:
    print(json.dumps(document))


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr)
