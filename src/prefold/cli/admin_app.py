"""Commands for a running server's cache: what can be typed; the work is elsewhere."""

from __future__ import annotations

from typing import Annotated, get_type_hints
from urllib.parse import quote

import typer

from prefold.cli.admin_options import AdminAction, AdminOptions, AdminPlace, PromptSource
from prefold.cli.arguments import AsJson
from prefold.cli.durations import parse_seconds
from prefold.cli.lazy import load_light
from prefold.cli.spread import spread
from prefold.errors import InvalidInputError
from prefold.identity.domain import Domain
from prefold.identity.fingerprint import Fingerprint

cache_app = typer.Typer(
    help="Look at a running server's cache, share parts of it, and drop them.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
domains_app = typer.Typer(
    help="Take domains of a running server out of service.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Tenant = Annotated[
    str | None,
    typer.Option(help="Whose requests are to find it; needed where there are several."),
]
DomainBelow = Annotated[
    str | None, typer.Option("--domain", help="The tenant's own domain or one below it.")
]


@cache_app.callback()
def _cache(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@domains_app.callback()
def _domains(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(options: AdminOptions) -> int:
    """Ask the server, and show its answer."""
    return load_light("prefold.cli.admin", "run_admin")(options)


@cache_app.command()
@spread()
def stats(
    *,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Show the cache's and the engine's figures."""
    return run(AdminOptions(action=AdminAction.STATS, place=place, as_json=as_json))


@cache_app.command()
@spread()
def worth(
    *,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Say what caching saves and holds since the start, and whether it pays."""
    return run(AdminOptions(action=AdminAction.WORTH, place=place, as_json=as_json))


@cache_app.command()
@spread()
def tree(
    *,
    max_nodes: Annotated[int, typer.Option(min=1, help="Runs to show at most.")] = 1000,
    depth: Annotated[int, typer.Option(min=1, help="Runs on one path at most.")] = 100,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Show the cached runs, each below the one that it continues."""
    options = AdminOptions(
        action=AdminAction.TREE,
        place=place,
        as_json=as_json,
        fields={"max_nodes": max_nodes, "depth": depth},
    )
    return run(options)


@cache_app.command()
@spread()
def whatif(
    *,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Say what half, twice and four times the cache would hit and save."""
    return run(AdminOptions(action=AdminAction.WHATIF, place=place, as_json=as_json))


@cache_app.command()
@spread()
def lookup(
    *,
    prompt: PromptSource,
    tenant: Tenant = None,
    domain: DomainBelow = None,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Say what a prompt would hit at this moment. Has no effect."""
    options = AdminOptions(
        action=AdminAction.LOOKUP,
        place=place,
        as_json=as_json,
        fields={"tenant": tenant, "domain": domain},
        prompt=prompt,
    )
    return run(options)


@cache_app.command()
@spread()
def warm(  # noqa: PLR0913 -- its options, each by name
    *,
    prompt: PromptSource,
    tenant: Tenant = None,
    domain: DomainBelow = None,
    ttl: Annotated[
        str | None,
        typer.Option(help="How long it is kept unused: 90s, 12h. [default: the tenant's]"),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="From -100 to 100; lower ones go first. [default: 0]")
    ] = None,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Compute a prompt now, so that later requests hit it."""
    options = AdminOptions(
        action=AdminAction.WARM,
        place=place,
        as_json=as_json,
        fields={
            "tenant": tenant,
            "domain": domain,
            "ttl_s": parse_seconds("--ttl", ttl),
            "priority": priority,
        },
        prompt=prompt,
    )
    return run(options)


@cache_app.command()
@spread()
def approve(  # noqa: PLR0913 -- its options, each by name
    *,
    domain: Annotated[str, typer.Option(help="It and all below it share the prefix.")],
    label: Annotated[str, typer.Option(help="What to call it; unique in the domain.")],
    pinned: Annotated[bool, typer.Option("--pinned", help="Never evict it.")] = False,
    ttl: Annotated[
        str | None, typer.Option(help="How long it holds: 12h, 90d. [default: for ever]")
    ] = None,
    prompt: PromptSource,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Compute the beginning of prompts, and let all requests of a domain share it."""
    options = AdminOptions(
        action=AdminAction.APPROVE,
        place=place,
        as_json=as_json,
        fields={
            "domain": domain,
            "label": label,
            "pinned": pinned,
            "ttl_s": parse_seconds("--ttl", ttl),
        },
        prompt=prompt,
    )
    return run(options)


@cache_app.command()
@spread()
def approvals(
    *,
    domain: Annotated[
        str | None, typer.Option(help="Only for this domain and those below it.")
    ] = None,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """List the approved prefixes."""
    options = AdminOptions(
        action=AdminAction.APPROVALS,
        place=place,
        as_json=as_json,
        fields={"domain": domain},
    )
    return run(options)


@cache_app.command()
@spread()
def withdraw(
    *,
    approval: Annotated[str, typer.Argument(help="Its id, as 'cache approvals' shows it.")],
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """End an approval, at once."""
    options = AdminOptions(
        action=AdminAction.WITHDRAW,
        place=place,
        as_json=as_json,
        fields={"id": approval},
    )
    return run(options)


@cache_app.command()
@spread()
def invalidate(  # noqa: PLR0913 -- its options, each by name
    *,
    everything: Annotated[bool, typer.Option("--everything", help="All of it.")] = False,
    domain: Annotated[
        str | None,
        typer.Option(help="What a domain has; with a prompt, only what begins with it."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --domain: not what is below it.")
    ] = False,
    approval: Annotated[str | None, typer.Option(help="One approval, by its id.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="What was computed before: 90s, 12h, 7d.")
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="What has --value in this field of its fingerprint: weights ..."),
    ] = None,
    value: Annotated[
        str | None, typer.Option(help="'current', 'null', digits, or hexadecimal digits.")
    ] = None,
    prompt: PromptSource,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Drop what one selector covers, at once."""
    fields: dict[str, object] = {
        "everything": everything or None,
        "domain": domain,
        "below": False if exact else None,
        "approval": approval,
        "older_than_s": parse_seconds("--older-than", older_than),
        "field": field,
    }
    if value is not None:
        fields["value"] = _value(field, value)
    options = AdminOptions(
        action=AdminAction.INVALIDATE,
        place=place,
        as_json=as_json,
        fields=fields,
        prompt=prompt,
        needs_prompt=False,
    )
    return run(options)


@cache_app.command()
@spread()
def reset(
    *,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Drop everything that is cached, at once."""
    return run(AdminOptions(action=AdminAction.RESET, place=place, as_json=as_json))


@domains_app.command()
@spread()
def revoke(
    *,
    path: Annotated[str, typer.Argument(help="The domain, such as acme/search.")],
    drain: Annotated[
        bool, typer.Option("--drain", help="Let open requests finish. [default: abort]")
    ] = False,
    place: AdminPlace,
    as_json: AsJson = False,
) -> int:
    """Revoke keys, requests and cached KV of a domain and of all below it."""
    options = AdminOptions(
        action=AdminAction.REVOKE,
        place=place,
        as_json=as_json,
        path=quote(Domain(path).path),
        fields={"requests": "drain" if drain else "abort"},
    )
    return run(options)


def _value(field: str | None, text: str) -> object:
    if text == "null":
        return None
    if get_type_hints(Fingerprint).get(field or "") is not int or text == "current":
        return text
    if not text.isdecimal() or len(text) > 18:
        raise InvalidInputError(f"--value must be 'current' or a whole number for {field}")
    return int(text)
