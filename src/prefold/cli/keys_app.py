"""Commands of ``prefold keys``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from prefold.cli.arguments import AsJson
from prefold.cli.keys_options import (
    KeyPlace,
    ListKeysOptions,
    NewKeyOptions,
    RevokeKeyOptions,
)
from prefold.cli.lazy import load_light
from prefold.cli.spread import spread

keys_app = typer.Typer(
    help="Make, show and revoke API keys of tenants.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

_MODULE = "prefold.cli.keys"


@keys_app.callback()
def _keys(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@keys_app.command()
@spread()
def new(
    *,
    tenant: Annotated[str, typer.Argument(help="Whose key it is to be.")],
    label: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(help="How long it is valid: 12h, 90d, 52w. [default: for ever]"),
    ] = None,
    place: KeyPlace,
    as_json: AsJson = False,
) -> int:
    """Make a key and print it, once: only its hash is kept."""
    options = NewKeyOptions(
        tenant=tenant,
        label=label,
        expires_in=expires_in,
        place=place,
        as_json=as_json,
    )
    return load_light(_MODULE, "run_new")(options)


@keys_app.command(name="list")
@spread()
def list_(
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys.")] = None,
    place: KeyPlace,
    as_json: AsJson = False,
) -> int:
    """Show whose keys there are, without what is secret of them."""
    options = ListKeysOptions(
        tenant=tenant,
        place=place,
        as_json=as_json,
    )
    return load_light(_MODULE, "run_list")(options)


@keys_app.command()
@spread()
def revoke(
    *,
    key: Annotated[str, typer.Argument(help="The key's id, as 'keys list' shows it.")],
    place: KeyPlace,
    as_json: AsJson = False,
) -> int:
    """Make a key invalid, within five seconds also in running servers."""
    options = RevokeKeyOptions(key=key, place=place, as_json=as_json)
    return load_light(_MODULE, "run_revoke")(options)
