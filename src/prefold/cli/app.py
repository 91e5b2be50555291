"""Commands: what can be typed, and what each option means.

Only descriptions: the work is in the modules that ``load`` names, so that help and
mistakes are answered without importing torch.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Protocol, cast

import typer

from prefold.cli.adapters_app import adapters_app
from prefold.cli.admin_app import cache_app, domains_app
from prefold.cli.advise_app import advise
from prefold.cli.arguments import AsJson, ModelArgument, ModelOption
from prefold.cli.bench_app import bench_app
from prefold.cli.keys_app import keys_app
from prefold.cli.lazy import load
from prefold.cli.misses_app import explain, misses
from prefold.cli.options import (
    DemoOptions,
    GenerateOptions,
    ModelOptions,
    SamplingOptions,
)
from prefold.cli.quiet import quiet_libraries
from prefold.cli.replay_app import replay
from prefold.cli.runs_app import pin, runs, unpin
from prefold.cli.serve_app import serve
from prefold.cli.spread import spread
from prefold.cli.verify_options import VerifyOptions
from prefold.errors import InvalidInputError

app = typer.Typer(
    help="A prefix cache for serving large language models.",
    add_completion=False,
    invoke_without_command=True,
    # Help is plain text: the same on every terminal and in every pipe.
    rich_markup_mode=None,
)


def _print_version(is_wanted: bool) -> None:  # noqa: FBT001 -- how typer calls it
    if is_wanted:
        try:
            version = importlib.metadata.version("prefold")
        except importlib.metadata.PackageNotFoundError:  # run from a source tree
            version = "(not installed)"
        typer.echo(f"prefold {version}")
        raise typer.Exit


@app.callback()
def _prefold(
    context: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@spread()
def demo(*, model: ModelOption = None, how: ModelOptions, as_json: AsJson = False) -> int:
    """Show what a hit saves, and that it changes nothing else."""
    options = DemoOptions(model=replace(how, model=model), as_json=as_json)
    quiet_libraries(model)
    return load("prefold.cli.demo", "run_demo")(options)


@app.command()
@spread()
def generate(  # noqa: PLR0913 -- typer reads the options off the signature
    *,
    model: ModelArgument = None,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What to ask.")],
    sampling: SamplingOptions,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw", help="Apply the chat template. [default: if there is one]"
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system part of a chat.")] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, help="Ask so many times.")] = 1,
    how: ModelOptions,
    as_json: AsJson = False,
) -> int:
    """Answer one prompt, and say what of it was reused."""
    options = GenerateOptions(
        model=replace(how, model=model),
        sampling=sampling,
        prompt=prompt,
        chat=chat,
        system=system,
        repeat=repeat,
        as_json=as_json,
    )
    quiet_libraries(model)
    return load("prefold.cli.generate", "run_generate")(options)


@app.command()
@spread(without=("cache_memory", "cache_blocks", "cache_policy"))
def verify(
    *,
    model: ModelArgument = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A file with one prompt a line. [default: built-in ones]"),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Run every prompt in every variant.")
    ] = False,
    how: ModelOptions,
    as_json: AsJson = False,
) -> int:
    """Run prompts with and without the cache, and compare every bit."""
    options = VerifyOptions(
        model=replace(how, model=model), prompts=prompts, is_full=full, as_json=as_json
    )
    quiet_libraries(model)
    return load("prefold.cli.verify", "run_verify")(options)


app.command()(serve)
app.command()(replay)
app.command()(advise)
app.add_typer(keys_app, name="keys")
app.add_typer(bench_app, name="bench")
cache_app.command()(explain)
cache_app.command()(misses)
cache_app.command()(runs)
cache_app.command()(pin)
cache_app.command()(unpin)
app.add_typer(cache_app, name="cache")
app.add_typer(domains_app, name="domains")
app.add_typer(adapters_app, name="adapters")


# -- running ---------------------------------------------------------------------------


class _UsageError(Protocol):
    def format_message(self) -> str: ...


#: The root of what the option parser raises: BadParameter is a usage error is this.
#: Neither parent has a public name in every release of typer.
_PARSER_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[2])


def run(arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` name; return its exit code.

    Raises:
        InvalidInputError: There is no such command or option, or a value is malformed.
    """
    command = typer.main.get_command(app)
    try:
        code = command.main(
            args=list(arguments), prog_name="prefold", standalone_mode=False
        )
    except _PARSER_ERROR as error:
        message = cast("_UsageError", error).format_message()
        raise InvalidInputError(message) from error
    return code if isinstance(code, int) else 0
