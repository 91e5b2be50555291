"""Commands for single runs of a running server's cache: what can be typed."""

from __future__ import annotations

from typing import Annotated

import typer

from prefold.cli.admin_app import run
from prefold.cli.admin_options import AdminAction, AdminOptions, AdminPlace
from prefold.cli.arguments import AsJson
from prefold.cli.spread import spread

RunId = Annotated[
    str, typer.Argument(metavar="RUN", help="Its id, as 'cache runs' shows it.")
]


@spread()
def runs(
    *,
    parent: Annotated[
        str | None,
        typer.Option(help="What continues this run. [default: what prompts begin with]"),
    ] = None,
    cursor: Annotated[
        str | None, typer.Option(help="The page that begins here, as the last one said.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many at most.")] = 50,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """List runs that prompts begin with, or that continue one, newest first, with ids."""
    options = AdminOptions(
        action=AdminAction.RUNS,
        place=place,
        as_json=as_json,
        fields={"parent": parent, "cursor": cursor, "limit": limit},
    )
    return run(options)


@spread()
def pin(
    *,
    run_id: RunId,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Keep a run, and all that it continues, from eviction."""
    return _change(AdminAction.PIN, run_id, place, as_json=as_json)


@spread()
def unpin(
    *,
    run_id: RunId,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Let a run that was pinned be evicted again."""
    return _change(AdminAction.UNPIN, run_id, place, as_json=as_json)


def _change(action: AdminAction, run_id: str, place: AdminPlace, *, as_json: bool) -> int:
    return run(
        AdminOptions(action=action, place=place, as_json=as_json, fields={"run": run_id})
    )
