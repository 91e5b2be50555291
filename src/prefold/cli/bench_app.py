"""Commands of ``prefold bench``: what can be typed; the work is in the module loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from prefold.cli.arguments import AsJson, ModelOption
from prefold.cli.bench_options import (
    BenchOptions,
    Endpoint,
    LoadOptions,
    ThroughputOptions,
)
from prefold.cli.lazy import load, load_light
from prefold.cli.options import ModelOptions
from prefold.cli.quiet import quiet_libraries
from prefold.cli.spread import spread

bench_app = typer.Typer(
    help="Measure servers, and the engine.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@bench_app.callback()
def _bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench_app.command()
@spread()
def serving(  # noqa: PLR0913 -- typer reads the options off the signature
    *,
    base_url: Annotated[
        str, typer.Option(help="Of any OpenAI-compatible server, with /v1.")
    ] = "http://127.0.0.1:8000/v1",
    model: Annotated[
        str | None, typer.Option(help="[default: the first that the server lists]")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["PREFOLD_API_KEY", "OPENAI_API_KEY"],
            help="Better given in the environment than here, where others see it.",
        ),
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="Which interface.")] = Endpoint.CHAT,
    load: LoadOptions,
    extra_body: Annotated[
        str, typer.Option(help="A JSON object of fields added to every request.")
    ] = "{}",
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for one request.")
    ] = 600.0,
    as_json: AsJson = False,
) -> int:
    """Send requests to a server and time its answers."""
    options = BenchOptions(
        base_url=base_url,
        model=model,
        api_key=api_key,
        endpoint=endpoint,
        load=load,
        extra_body=extra_body,
        timeout_s=timeout,
        as_json=as_json,
    )
    return load_light("prefold.cli.bench", "run_bench")(options)


@bench_app.command()
@spread()
def throughput(  # noqa: PLR0913 -- as above
    *,
    model: ModelOption = None,
    sequences: Annotated[
        int, typer.Option(min=1, max=256, help="That decode together.")
    ] = 16,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Of each prompt; none are shared.")
    ] = 256,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps that count.")] = 32,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where a step's time goes.")
    ] = False,
    how: ModelOptions,
    as_json: AsJson = False,
) -> int:
    """Time decode steps of the engine, for one sequence and for many."""
    options = ThroughputOptions(
        model=replace(how, model=model),
        sequences=sequences,
        prompt_tokens=prompt_tokens,
        steps=steps,
        has_profile=profile,
        as_json=as_json,
    )
    quiet_libraries(model)
    return load("prefold.cli.bench_throughput", "run_throughput")(options)
