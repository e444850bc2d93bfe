"""The console and its people: `console`, `users add`, `list`, ...; the federation's `budget`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.cli.terminal import (
    DEFAULT_HOME,
    HomeOption,
    RegistryChoice,
    open_coordinator,
    single_threaded_kernels,
)
from coordinator.errors import ServiceError
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import KeptChild, write_logs
from pate_fed.nodes.command_line import Commands, show
from pate_fed.nodes.ports import host_and_port
from pate_fed.wording import epsilon_text, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.people.people import SetupCode

_PACKAGE: Final = "coordinator"
_PAUSES: Final = (1.0, 30.0)
_IS_STEADY_S: Final = 60.0
_log = logging.getLogger(__name__)

users_app = Commands("The people of the console.")
tokens_app = Commands("The tokens with which programs use the API.")


def _roles() -> Iterable[str]:
    from coordinator.people.people import Role  # noqa: PLC0415 - keeps --help fast

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
    write_logs(_PACKAGE)
    os.umask(0o077)
    single_threaded_kernels()
    from coordinator.console import serve  # noqa: PLC0415 - keeps --help fast

    serve(open_coordinator(home), host=host, port=port)


def kept_console(home: Path, address: str) -> KeptChild:
    """Return the console as a process beside the service: started again when it ends."""
    place = host_and_port(address)
    if place is None:
        raise InvalidSettingError("--console must be HOST:PORT, such as 127.0.0.1:8447", address)
    program = [sys.executable, "-P", "-m", "coordinator.console.process"]
    return KeptChild(
        "the console",
        [*program, str(home.absolute()), place[0], str(place[1])],
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
) -> None:
    """Show the most epsilon that all runs together may charge a hospital's units, or set it.

    To raise it takes two people in the console.
    """
    coordinator = open_coordinator(home)
    if epsilon is not None:
        coordinator.budget.change(epsilon)
    found, proposal = coordinator.budget.epsilon(), coordinator.budget.proposal()
    used = coordinator.spending.committed()
    lines = ["No budget is set." if found is None else f"Budget: epsilon {found:g} for all runs."]
    lines += [
        f"{name:24} epsilon {epsilon_text(one)} of runs that charged, or may"
        for name, one in sorted(used.items())
    ]
    proposed = None
    if proposal is not None:
        proposed = {"epsilon": proposal.epsilon, "by": proposal.by}
        lines.append(f"{proposal.by} proposes epsilon {proposal.epsilon:g}: agree in the console.")
    show({"epsilon": found, "used": used, "proposal": proposed}, lines)


@users_app.command()
def add(
    name: UserName,
    role: RoleOption,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Add a person; print the setup code with which they choose a password."""
    from coordinator.people.people import Role  # noqa: PLC0415 - keeps --help fast

    _show_code(open_coordinator(home).people.add(name, Role(role)))


@users_app.command("list")
def list_people(home: HomeOption = DEFAULT_HOME) -> None:
    """Show everybody, with their roles."""
    found = open_coordinator(home).people.all()
    tables: list[dict[str, object]] = [
        {
            "name": one.name,
            "role": one.role.value,
            "is_set_up": one.is_set_up,
            "is_locked": one.is_locked,
        }
        for one in found
    ]
    lines = []
    for one in found:
        notes = [] if one.is_set_up else ["not set up yet"]
        notes += ["locked"] if one.is_locked else []
        lines.append(f"{one.name:24} {', '.join([one.role.value, *notes])}")
    nobody = "Nobody yet: pate-fed users add NAME --role administrator"
    show({"people": tables}, lines or [nobody])


@users_app.command()
def role(
    name: UserName,
    role: RoleOption,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Give a person another role."""
    from coordinator.people.people import Role  # noqa: PLC0415 - keeps --help fast

    open_coordinator(home).people.give_role(name, Role(role))
    show({"name": name, "role": role}, [f"{name} is {role} from now on."])


@users_app.command()
def subject(
    name: UserName,
    subject: Annotated[
        str, typer.Argument(metavar="[SUBJECT]", help="Theirs at the OpenID provider.")
    ] = "",
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Let a person sign in by their OpenID account; without SUBJECT no more."""
    coordinator = open_coordinator(home)
    issuer = coordinator.home.settings.openid.issuer
    coordinator.people.give_subject(name, subject, issuer=issuer)
    said = f"{name} signs in as {subject} of {issuer}." if subject else f"{name}: no account."
    show({"name": name, "subject": subject}, [said])


@users_app.command()
def reset(name: UserName, home: HomeOption = DEFAULT_HOME) -> None:
    """Let a person set up password and one-time codes anew; ends their sessions."""
    _show_code(open_coordinator(home).people.reset(name))


@users_app.command()
def remove(name: UserName, home: HomeOption = DEFAULT_HOME) -> None:
    """Remove a person; their audit entries stay."""
    open_coordinator(home).people.remove(name)
    show({"name": name, "removed": True}, [f"{name} is removed."])


def _scopes() -> Iterable[str]:
    from coordinator.people.api_tokens import Scope  # noqa: PLC0415 - keeps --help fast

    return [scope.value for scope in Scope]


TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The token.")]


@tokens_app.command("add")
def add_token(
    name: TokenName,
    person: Annotated[str, typer.Option(help="Its acts are theirs, within their role.")],
    scope: Annotated[
        list[str], typer.Option(click_type=RegistryChoice(_scopes), help="A right; repeat it.")
    ],
    days: Annotated[float, typer.Option(help="It ends after so many.")] = 90,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Make a token of the API; print it, once."""
    from coordinator.people.api_tokens import Scope  # noqa: PLC0415 - keeps --help fast

    scopes = [Scope(one) for one in scope]
    made = open_coordinator(home).tokens.make(name, person=person, scopes=scopes, days=days)
    said = "It is shown this once: give it to its program as a secret."
    show({"name": name, "token": made}, [made, said])


@tokens_app.command("list")
def list_tokens(home: HomeOption = DEFAULT_HOME) -> None:
    """Show every token, without its secret."""
    found = open_coordinator(home).tokens.all()
    tables: list[dict[str, object]] = [
        {
            "name": one.name,
            "person": one.person,
            "scopes": sorted(one.scopes),
            "until": one.ends_at.isoformat(timespec="seconds"),
            "used": one.used,
        }
        for one in found
    ]
    lines = [
        f"{one.name:24} {one.person}, {' '.join(sorted(one.scopes))}; until "
        f"{one.ends_at:%Y-%m-%d}; used {plural(one.used, 'time')}"
        for one in found
    ]
    show({"tokens": tables}, lines or ["None."])


@tokens_app.command("revoke")
def revoke_token(name: TokenName, home: HomeOption = DEFAULT_HOME) -> None:
    """Let a token end now."""
    open_coordinator(home).tokens.revoke(name)
    show({"name": name, "revoked": True}, [f"{name} is revoked."])


def _show_code(code: SetupCode) -> None:
    until = code.until.isoformat(timespec="seconds")
    show(
        {"name": code.person, "setup_code": code.text, "until": until},
        (
            f"{code.person} sets up a password and one-time codes at the console's page /welcome "
            "with",
            f"  {code.text}",
            f"The code is good once, until {until}. Tell it to nobody else.",
        ),
    )
