"""Commands for why a running server's requests missed: what can be typed."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from prefold.cli.admin_app import run
from prefold.cli.admin_options import AdminAction, AdminOptions, AdminPlace
from prefold.cli.arguments import AsJson
from prefold.cli.spread import spread
from prefold.errors import InvalidInputError

#: What a server makes, and takes from its clients; dots alone would be another path.
_REQUEST_ID = re.compile(r"(?!\.*$)[A-Za-z0-9._-]{1,64}")


@spread()
def explain(
    *,
    request_id: Annotated[
        str, typer.Argument(help="As the answer's header x-request-id has it.")
    ],
    tenant: Annotated[
        str | None, typer.Option(help="Whose; needed where several used the id.")
    ] = None,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Say why a recent request did not hit further than it did."""
    if _REQUEST_ID.fullmatch(request_id) is None:
        raise InvalidInputError(
            "a request id is 1 to 64 letters, digits, '.', '_' and '-'; take it from "
            "x-request-id of the answer"
        )
    options = AdminOptions(
        action=AdminAction.EXPLAIN,
        place=place,
        as_json=as_json,
        path=request_id,
        fields={"tenant": tenant},
    )
    return run(options)


@spread()
def misses(
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """List the last prompts that missed something, newest first, with the reasons."""
    options = AdminOptions(
        action=AdminAction.MISSES,
        place=place,
        as_json=as_json,
        fields={"limit": limit},
    )
    return run(options)
