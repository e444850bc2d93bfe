"""Options that are settings of a run: made from their rows in `pate_fed.options`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final, get_args, get_origin

import click
import typer

from coordinator.cli.terminal import (
    RegistryChoice,
    data_sources,
    numbers,
    students,
    suites,
    sum_forms,
)
from pate_fed.options import OPTIONS, RUN, Option

Given = Mapping[str, Any]
"""Values of settings by name; None for one that nobody gave, and that follows from others."""

_REGISTRIES: Final = {
    "data": data_sources,
    "form": sum_forms,
    "student": students,
    "suite": suites,
}


def takes(*options: str | Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take settings, by name or row, in place of its parameter `given`, a `Given`."""
    rows = [OPTIONS[one] if isinstance(one, str) else one for one in options]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:
            given = {row.name: _read(row, values.pop(row.name)) for row in rows}
            command(**values, given=given)

        made: list[Parameter] = []
        for one in signature(command, eval_str=True).parameters.values():
            made += map(_parameter, rows) if one.name == "given" else [one]
        keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in made]
        run.__signature__ = signature(run).replace(parameters=keywords)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(row: Option) -> Parameter:
    """Return a setting as Typer reads it."""
    choices = row.choices or _REGISTRIES.get(row.name)
    kind = str if get_origin(row.kind) is tuple else row.kind
    option = typer.Option(
        row.flag,
        metavar=row.metavar,
        click_type=RegistryChoice(choices)
        if callable(choices)
        else click.Choice(choices)
        if choices
        else None,
        help=row.help,
        rich_help_panel=row.panel or None,
    )
    kind = kind | None if row.usual is None else kind
    return Parameter(
        row.name,
        Parameter.KEYWORD_ONLY,
        default=row.usual,
        annotation=Annotated[kind, option],
    )


def _read(row: Option, value: Any) -> Any:
    """Return the value of a setting; numbers are typed between commas."""
    if get_origin(row.kind) is tuple:
        return numbers(row.flag, value, get_args(row.kind)[0])
    return tuple(value or ()) if get_origin(row.kind) is list else value


Patience = Annotated[
    float,
    typer.Option(help="Hours to wait for silent hospitals and for approvals.", rich_help_panel=RUN),
]
Detach = Annotated[
    bool,
    typer.Option("--detach", help="Queue the run without following it.", rich_help_panel=RUN),
]
