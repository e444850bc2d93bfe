"""Shared by all commands: options, printing, and one line with a code for every fault."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import click
import typer

from party.errors import (
    JoinError,
    MembershipError,
    NotConfirmedError,
    NotReadyError,
    PartyError,
    PartyInternalError,
    PartyUsageError,
    PinError,
    RefusalError,
    WordsDifferError,
    code_of,
)
from pate_fed.errors import InvalidParameterError, PateFedError
from pate_fed.nodes import printable
from pate_fed.nodes.command_line import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_PEERS,
    EXIT_REFUSED,
    EXIT_USAGE,
    CommandLine,
)
from protocols.errors import InvitationError, ProtocolError

_EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (PartyUsageError, EXIT_USAGE),
    (MembershipError, EXIT_USAGE),
    (PinError, EXIT_USAGE),
    (InvalidParameterError, EXIT_USAGE),
    (NotConfirmedError, EXIT_REFUSED),
    (RefusalError, EXIT_REFUSED),
    (JoinError, EXIT_PEERS),
    (WordsDifferError, EXIT_PEERS),
    (NotReadyError, EXIT_PEERS),
    (PartyInternalError, EXIT_FAILED),
    (PartyError, EXIT_INPUT),
    (PateFedError, EXIT_INPUT),
    (InvitationError, EXIT_INPUT),
    (ProtocolError, EXIT_PEERS),
)

LINE: Final = CommandLine(
    "pate-party",
    about="Set up and run a hospital's node, in one or several federations.",
    service="start",
    errors=(PateFedError, ProtocolError, PartyError),
    exit_codes=_EXIT_CODES,
    usage=PartyUsageError,
    internal=PartyInternalError,
    interrupt=("a command must go through", "an interrupt"),
    code_of=code_of,
)

SiteOption = Annotated[
    Path, typer.Option("--site", metavar="DIR", help="The hospital's folder.", show_default=True)
]
FederationOption = Annotated[
    str | None,
    typer.Option(
        "--federation",
        metavar="NAME",
        help="Federation, by its name in `status`; required if there are several.",
    ),
]
ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who decides. [default: your login]")
]
DEFAULT_SITE: Final = Path("pate-party")


def decider(by: str | None) -> str:
    """Return the name of the deciding person."""
    return by or getpass.getuser()


def tell(line: str) -> None:
    """Tell people something beside the result, without characters that steer the terminal."""
    typer.echo(printable(line), err=True)


def is_attended() -> bool:
    """Tell whether a person sits at a terminal."""
    return sys.stdin.isatty()


def ask_text(question: str, default: str | None = None) -> str:
    """Ask a person for a line; only Enter gives `default`, or "" where there is none."""
    answer = typer.prompt(
        question, default=default or "", show_default=default is not None, err=True
    )
    return str(answer).strip()


def ask_choice(question: str, choices: Sequence[str], default: str) -> str:
    """Ask a person for one of some words; raises as `ask_text` does."""
    return str(typer.prompt(question, default=default, type=click.Choice(choices), err=True))
