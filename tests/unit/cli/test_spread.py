"""Options declared once: what commands make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from prefold.cli.spread import spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    city: Annotated[str, typer.Option("--city", help="Which.")]
    floor: Annotated[int, typer.Option(min=0)] = 1
    kept: str = "not typed"


def told(command: Callable[..., int], *arguments: str) -> str:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    result = CliRunner().invoke(app, arguments)
    return result.output


@spread()
def visit(*, place: Place, times: Annotated[int, typer.Option()] = 2) -> int:
    """Go there."""
    typer.echo(f"{place} {times}")
    return 0


@spread(without=("floor",))
def pass_by(*, place: Place) -> int:
    typer.echo(str(place))
    return 0


def test_a_command_gets_what_was_typed_as_one_value() -> None:
    assert told(visit, "--floor", "3", "--city", "Bonn", "--times", "5") == (
        f"{Place(city='Bonn', floor=3)} 5\n"
    )


def test_what_is_not_typed_has_the_default_of_its_field() -> None:
    assert told(visit, "--city", "Bonn") == f"{Place(city='Bonn')} 2\n"


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (visit, ["--city", "Bonn", "--floor", "-1"], "--floor"),
        (visit, [], "--city"),
        (visit, ["--city", "Bonn", "--kept", "x"], "--kept"),
        (pass_by, ["--city", "Bonn", "--floor", "2"], "--floor"),
    ],
)
def test_what_is_wrong_or_not_offered_is_named(
    command: Callable[..., int], arguments: list[str], said: str
) -> None:
    output = told(command, *arguments)
    assert "Error" in output
    assert said in output


def test_help_is_that_of_the_command_and_of_each_field() -> None:
    output = told(visit, "--help")
    assert "Go there." in output
    assert "Which." in output
