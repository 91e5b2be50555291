"""Spread options: what several commands take, declared once as a dataclass's fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, get_origin, get_type_hints


def spread(
    without: Collection[str] = (),
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the fields of its dataclass parameters as options of its own.

    A field is an option where it is annotated with what typer is to make of it; the others
    keep their defaults. The command is called with the dataclass, made of what was typed.

    Args:
        without: Names of fields that this command does not offer.
    """

    def change(command: Callable[..., int]) -> Callable[..., int]:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[Parameter] = []
        groups: dict[str, tuple[type, list[str]]] = {}
        for name, parameter in signature(command).parameters.items():
            group = hints[name]
            if isinstance(group, type) and is_dataclass(group):
                offered = [it for it in _options(group) if it.name not in without]
                groups[name] = (group, [it.name for it in offered])
                parameters += offered
            else:
                parameters.append(parameter.replace(annotation=group))

        @wraps(command)
        def run(**given: object) -> int:
            made = {
                name: group(**{option: given.pop(option) for option in offered})
                for name, (group, offered) in groups.items()
            }
            return command(**given, **made)

        # Typer reads both.
        vars(run)["__signature__"] = Signature(parameters, return_annotation=int)
        run.__annotations__ = {it.name: it.annotation for it in parameters}
        return run

    return change


def _options(group: type) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if get_origin(hints[field.name]) is Annotated:
            yield Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=hints[field.name],
            )
