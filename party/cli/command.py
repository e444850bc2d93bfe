"""All commands of `pate-party`, and the one handler of whatever goes wrong in them.

Tracebacks are off for good: they show local variables, hence votes and keys.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import click
import typer

from party.cli.console import EXIT_DONE, fail
from party.cli.decisions import approve, reject
from party.cli.machine import doctor, service_app
from party.cli.membership import join, leave, renew
from party.cli.node import audit_app, budget, pause, resume, start
from party.cli.peers import peers_app
from party.cli.policy import policy_app
from party.cli.records import data_app
from party.cli.results import results
from party.cli.setup import setup
from party.cli.status import status
from party.errors import InternalError, PartyError, UsageError
from pate_fed import __version__
from pate_fed.errors import PateFedError
from pate_fed.nodes import one_line, place_of
from protocols.errors import ProtocolError

_INTERRUPTED: Final = 130  # what Typer returns after Ctrl-C, without a word
_INTERRUPT: Final = ("a command must go through", "an interrupt")

app = typer.Typer(
    name="pate-party",
    help="A hospital's node, in any number of federations.",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # Click suggests them, too
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(setup)
app.command()(join)
app.command()(status)
app.add_typer(data_app, name="data")
app.add_typer(peers_app, name="peers")
app.command()(doctor)
app.command()(start)
app.command()(approve)
app.command()(reject)
app.command()(pause)
app.command()(resume)
app.command()(budget)
app.command()(results)
app.add_typer(audit_app, name="audit")
app.add_typer(service_app, name="service")
app.add_typer(policy_app, name="policy")
app.command()(renew)
app.command()(leave)


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
    """A hospital's node, in any number of federations."""


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
        fail(UsageError("the command line must be right", one_line(_said_once(error))))
    except (click.Abort, KeyboardInterrupt):
        fail(InternalError(*_INTERRUPT))
    except (PateFedError, ProtocolError, PartyError) as error:
        fail(error)
    except Exception as error:
        fail(InternalError("this program must not fail", place_of(error)))


def _said_once(error: click.UsageError) -> str:
    """Return what is wrong. Typer and Click both guess what was meant: one guess is enough."""
    has_guess = "Did you mean" in error.message
    return error.message if has_guess else error.format_message()
