"""Commands of ``prefold keys``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefold.cli.keys_options import (
    KeyPlace,
    ListKeysOptions,
    NewKeyOptions,
    RevokeKeyOptions,
)
from prefold.cli.lazy import load_light

keys_app = typer.Typer(
    help="Make, show and revoke API keys of tenants.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

_MODULE = "prefold.cli.keys"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The prefold.toml that names the key file and the tenants. "
        "[default: $PREFOLD_CONFIG, or prefold.toml in this directory]",
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help="The key file. [default: $PREFOLD_KEY_FILE, the configuration's, or "
        "api_keys.json in the user's state directory]",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object and nothing else.")
]


@keys_app.callback()
def _keys(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@keys_app.command()
def new(
    *,
    tenant: Annotated[str, typer.Argument(help="Whose key it is to be.")],
    label: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(help="How long it is valid: 12h, 90d, 52w. [default: for ever]"),
    ] = None,
    config: Config = None,
    key_file: KeyFileOption = None,
    as_json: AsJson = False,
) -> int:
    """Make a key and print it, once: only its hash is kept."""
    options = NewKeyOptions(
        tenant=tenant,
        label=label,
        expires_in=expires_in,
        place=KeyPlace(config=config, key_file=key_file),
        as_json=as_json,
    )
    return load_light(_MODULE, "run_new")(options)


@keys_app.command(name="list")
def list_(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys.")] = None,
    config: Config = None,
    key_file: KeyFileOption = None,
    as_json: AsJson = False,
) -> int:
    """Show whose keys there are, without what is secret of them."""
    options = ListKeysOptions(
        tenant=tenant,
        place=KeyPlace(config=config, key_file=key_file),
        as_json=as_json,
    )
    return load_light(_MODULE, "run_list")(options)


@keys_app.command()
def revoke(
    *,
    key: Annotated[str, typer.Argument(help="The key's id, as 'keys list' shows it.")],
    config: Config = None,
    key_file: KeyFileOption = None,
    as_json: AsJson = False,
) -> int:
    """Make a key invalid, within five seconds also in running servers."""
    options = RevokeKeyOptions(
        key=key, place=KeyPlace(config=config, key_file=key_file), as_json=as_json
    )
    return load_light(_MODULE, "run_revoke")(options)
