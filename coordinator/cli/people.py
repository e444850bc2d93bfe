"""The console and its people: `console`, `users add`, `list`, ...; the federation's `budget`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from coordinator.cli.console import (
    DEFAULT_HOME,
    FormatOption,
    HomeOption,
    RegistryChoice,
    open_coordinator,
    show,
    single_threaded_kernels,
)
from coordinator.errors import ServiceError
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import Format, KeptChild, write_logs_as_json
from pate_fed.nodes.command_line import print_json
from pate_fed.wording import epsilon_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.people import SetupCode

_PACKAGE: Final = "coordinator"
_PAUSES: Final = (1.0, 30.0)
_IS_STEADY_S: Final = 60.0
_log = logging.getLogger(__name__)

users_app = typer.Typer(
    help="The people of the console.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,
)


def _roles() -> Iterable[str]:
    from coordinator.people import Role  # noqa: PLC0415 - keeps --help fast

    return [role.value for role in Role]


UserName = Annotated[str, typer.Argument(metavar="NAME", help="The person.")]
RoleOption = Annotated[str, typer.Option(click_type=RegistryChoice(_roles), help="Their rights.")]


def console(
    home: HomeOption = DEFAULT_HOME,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen at. Any other than loopback is served over TLS, with the "
            "coordinator's certificate."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port.", min=0, max=65535)] = 8447,
) -> None:
    """Serve the operator's console, a website, until Ctrl-C. Logs are JSON lines.

    The service may run or not. `pate-fed users add` makes the first administrator.
    """
    write_logs_as_json(_PACKAGE)
    os.umask(0o077)
    single_threaded_kernels()
    from coordinator.console import serve  # noqa: PLC0415 - keeps --help fast

    serve(open_coordinator(home), host=host, port=port)


def kept_console(home: Path, address: str) -> KeptChild:
    """Return the console as a process beside the service: started again when it ends.

    Args:
        home: The federation's folder.
        address: Where it listens, "host:port".

    Raises:
        InvalidSettingError: the address is none.
    """
    from coordinator.federation.certificates import is_host  # noqa: PLC0415 - keeps --help fast

    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 2**16
    if not (is_port and is_host(host)):
        raise InvalidSettingError("--console must be HOST:PORT, such as 127.0.0.1:8447", address)
    program = [sys.executable, "-P", "-m", "coordinator.console.process"]
    return KeptChild(
        "the console",
        [*program, str(home.absolute()), host, port],
        environment=os.environ,
        logger=_log,
        fault_code=ServiceError.code,
        pauses=_PAUSES,
        backs_off=lambda lived_s: lived_s <= _IS_STEADY_S,
    )


def budget(
    epsilon: Annotated[
        float | None, typer.Argument(metavar="[EPSILON]", help="The first budget, or a lower one.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Show the most epsilon that all runs together may charge a hospital's units, or set it.

    To raise it takes two people in the console.
    """
    coordinator = open_coordinator(home)
    if epsilon is not None:
        coordinator.budget.change(epsilon)
    found, proposal = coordinator.budget.epsilon(), coordinator.budget.proposal()
    used = coordinator.spending.committed()
    if output_format is Format.JSON:
        proposed = None if proposal is None else {"epsilon": proposal.epsilon, "by": proposal.by}
        print_json({"epsilon": found, "used": used, "proposal": proposed})
        return
    show("No budget is set." if found is None else f"Budget: epsilon {found:g} for all runs.")
    show(
        *(
            f"{name:24} epsilon {epsilon_text(one)} of runs that charged, or may"
            for name, one in sorted(used.items())
        )
    )
    if proposal is not None:
        show(f"{proposal.by} proposes epsilon {proposal.epsilon:g}: agree in the console.")


@users_app.callback()
def users() -> None:
    """The people of the console."""


@users_app.command()
def add(
    name: UserName,
    role: RoleOption,
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Add a person; print the setup code with which they choose a password."""
    from coordinator.people import Role  # noqa: PLC0415 - keeps --help fast

    _show_code(open_coordinator(home).people.add(name, Role(role)), output_format)


@users_app.command("list")
def list_people(home: HomeOption = DEFAULT_HOME, output_format: FormatOption = Format.TEXT) -> None:
    """Show everybody, with their roles."""
    found = open_coordinator(home).people.all()
    tables: list[dict[str, Any]] = [
        {
            "name": one.name,
            "role": one.role.value,
            "is_set_up": one.is_set_up,
            "is_locked": one.is_locked,
        }
        for one in found
    ]
    if output_format is Format.JSON:
        print_json({"people": tables})
        return
    for one in found:
        notes = [] if one.is_set_up else ["not set up yet"]
        notes += ["locked"] if one.is_locked else []
        show(f"{one.name:24} {', '.join([one.role.value, *notes])}")
    if not found:
        show("Nobody yet: pate-fed users add NAME --role administrator")


@users_app.command()
def role(
    name: UserName,
    role: RoleOption,
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Give a person another role."""
    from coordinator.people import Role  # noqa: PLC0415 - keeps --help fast

    open_coordinator(home).people.give_role(name, Role(role))
    _say(f"{name} is {role} from now on.", {"name": name, "role": role}, output_format)


@users_app.command()
def subject(
    name: UserName,
    subject: Annotated[
        str, typer.Argument(metavar="[SUBJECT]", help="Theirs at the OpenID provider.")
    ] = "",
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Let a person sign in by their OpenID account; without SUBJECT no more."""
    coordinator = open_coordinator(home)
    issuer = coordinator.home.settings.openid.issuer
    coordinator.people.give_subject(name, subject, issuer=issuer)
    said = f"{name} signs in as {subject} of {issuer}." if subject else f"{name}: no account."
    _say(said, {"name": name, "subject": subject}, output_format)


@users_app.command()
def reset(
    name: UserName, home: HomeOption = DEFAULT_HOME, output_format: FormatOption = Format.TEXT
) -> None:
    """Let a person set up password and one-time codes anew; ends their sessions."""
    _show_code(open_coordinator(home).people.reset(name), output_format)


@users_app.command()
def remove(
    name: UserName, home: HomeOption = DEFAULT_HOME, output_format: FormatOption = Format.TEXT
) -> None:
    """Remove a person; their audit entries stay."""
    open_coordinator(home).people.remove(name)
    _say(f"{name} is removed.", {"name": name, "removed": True}, output_format)


def _say(line: str, table: dict[str, Any], output_format: Format) -> None:
    if output_format is Format.JSON:
        print_json(table)
    else:
        show(line)


def _show_code(code: SetupCode, output_format: Format) -> None:
    until = code.until.isoformat(timespec="seconds")
    if output_format is Format.JSON:
        print_json({"name": code.person, "setup_code": code.text, "until": until})
        return
    show(
        f"{code.person} sets up a password and one-time codes at the console's page /welcome with",
        f"  {code.text}",
        f"The code is good once, until {until}. Tell it to nobody else.",
    )
