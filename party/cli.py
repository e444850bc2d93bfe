"""The hospital's command line."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from party.errors import UsageError
from pate_fed import __version__

app = typer.Typer(
    name="pate-party",
    help="A hospital's node of a federation.",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pate-party {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A hospital's node of a federation.

    In this version parties run inside `pate-fed simulate`; joining a federation over a network
    comes next.
    """


def main() -> None:
    """Run the command line; a wrong one is one line with a code, and exit code 2."""
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.UsageError as error:
        wrong = UsageError("the command line must be right", error.format_message())
        typer.echo(f"pate-party: {wrong.code}: {wrong}", err=True)
        sys.exit(2)
