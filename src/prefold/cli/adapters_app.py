"""Commands for a running server's LoRA adapters: what can be typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from prefold.cli.admin_app import run
from prefold.cli.admin_options import AdminAction, AdminOptions, AdminPlace
from prefold.cli.arguments import AsJson
from prefold.cli.spread import spread
from prefold.engine.adapter_name import check_adapter_name

adapters_app = typer.Typer(
    help="List, load and unload LoRA adapters of a running server.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="What clients call it.")]


@adapters_app.callback()
def _adapters(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@adapters_app.command(name="list")
@spread()
def list_adapters(
    *,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """List the adapters, with the digests of their content."""
    return run(AdminOptions(action=AdminAction.ADAPTERS, place=place, as_json=as_json))


@adapters_app.command()
@spread()
def load(
    *,
    name: Name,
    path: Annotated[Path, typer.Argument(help="Its directory, as the server finds it.")],
    reload: Annotated[
        bool, typer.Option("--reload", help="In place of the one that has the name.")
    ] = False,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Load an adapter; requests are served meanwhile."""
    check_adapter_name(name)
    options = AdminOptions(
        action=AdminAction.LOAD_ADAPTER,
        place=place,
        as_json=as_json,
        # The server may have been started elsewhere.
        fields={"name": name, "path": str(path.absolute()), "reload": reload},
    )
    return run(options)


@adapters_app.command()
@spread()
def unload(
    *,
    name: Name,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Take no more requests for an adapter; open ones finish."""
    check_adapter_name(name)
    options = AdminOptions(
        action=AdminAction.UNLOAD_ADAPTER,
        place=place,
        as_json=as_json,
        path=quote(name),
    )
    return run(options)
