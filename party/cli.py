"""The hospital's command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

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
    """Run the command line."""
    sys.exit(app())
