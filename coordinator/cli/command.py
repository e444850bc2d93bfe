"""All commands of `pate-fed`, and the one handler of whatever goes wrong in them.

Tracebacks are off for good: they show local variables, hence votes and keys.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import click
import typer

from coordinator.cli.console import EXIT_DONE, fail
from coordinator.cli.cost import account, plan
from coordinator.cli.doctor import doctor
from coordinator.cli.federation import approve, init, invite, members, renew, revoke, upgrade
from coordinator.cli.pools import pool_app
from coordinator.cli.results import report, transcript_app
from coordinator.cli.runs import export, pause, resume, run, serve, status, stop
from coordinator.cli.simulate import simulate
from coordinator.errors import CoordinatorError, InternalError, UsageError
from pate_fed import __version__
from pate_fed.errors import PateFedError
from pate_fed.nodes import one_line, place_of
from protocols.errors import ProtocolError

_INTERRUPTED: Final = 130  # what Typer returns after Ctrl-C, without a word
_INTERRUPT: Final = ("a run must go through to be kept", "an interrupt: nothing was kept")

app = typer.Typer(
    name="pate-fed",
    help="Hospitals learn together without pooling records.",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # Click suggests them, too
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(simulate)
app.command()(account)
app.command()(plan)
app.command()(report)
for command in (
    *(init, invite, members, approve, revoke, renew, upgrade),
    *(doctor, serve, run, status, pause, resume, stop, export),
):
    app.command()(command)
app.add_typer(pool_app, name="pool")
app.add_typer(transcript_app, name="transcript")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pate-fed {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Hospitals learn together without pooling records."""


def main() -> None:
    """Run the command line; every way out is one line with a code, and a stable exit code."""
    try:
        ended = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        if ended == _INTERRUPTED:
            fail(InternalError(*_INTERRUPT))
        sys.exit(ended or EXIT_DONE)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.UsageError as error:
        fail(UsageError("the command line must be right", one_line(error.format_message())))
    except (click.Abort, KeyboardInterrupt):
        fail(InternalError(*_INTERRUPT))
    except (PateFedError, ProtocolError, CoordinatorError) as error:
        fail(error)
    except Exception as error:
        fail(InternalError("this program must not fail", place_of(error)))
