"""Who takes part: `init`, `invite`, `members`, `approve`, `suspend`, `revoke`, `renew`, ..."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.terminal import (
    DEFAULT_HOME,
    HomeOption,
    open_coordinator,
    require_new_invitation,
)
from coordinator.errors import HomeError
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import schema_of, typed_in
from pate_fed.nodes.command_line import print_json, show
from pate_fed.nodes.owner_files import write_new
from pate_fed.nodes.ports import host_and_port
from pate_fed.wording import plural
from protocols.fingerprint_words import spoken
from protocols.party_names import normalized

if TYPE_CHECKING:
    from coordinator.federation.enrollment import EnrolledParty, MadeInvitation
    from coordinator.operator import Coordinator


def init(  # noqa: PLR0917 - one argument per option
    name: Annotated[str, typer.Option(help="Name of the federation.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Public host and port.")],
    home: HomeOption = DEFAULT_HOME,
    host: Annotated[str, typer.Option(help="Address to bind the public port to.")] = "0.0.0.0",  # noqa: S104 - hospitals are elsewhere
    port: Annotated[
        int | None, typer.Option(help="The public port here. [default: the address's]")
    ] = None,
    admin_port: Annotated[int, typer.Option(help="On loopback, for internal use.")] = 8444,
    metrics_port: Annotated[int, typer.Option(help="On loopback, for monitoring.")] = 8445,
    health_port: Annotated[int, typer.Option(help="On loopback, gRPC health service.")] = 8446,
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="PostgreSQL, without a password: that comes from PATE_FED_DATABASE_URL, or from "
            "PostgreSQL's own password file. [default: SQLite in the folder]",
        ),
    ] = "",
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Another name for the certificate; repeatable."),
    ] = None,
) -> None:
    """Make a federation: its CA, certificate, identity and database, in a new folder."""
    from coordinator.federation.home import FederationHome, FederationSettings  # noqa: PLC0415 - keeps --help fast

    own_name, own_port = host_and_port(address) or ("", 0)
    names = (own_name, *(also or ())) if own_name else ()
    given = {
        "name": name,
        "address": address,
        "host": host,
        "port": own_port if port is None else port,
        "admin_port": admin_port,
        "metrics_port": metrics_port,
        "health_port": health_port,
        "database": _database_to_keep(database),
        "hosts": names,
    }
    settings = typed_in(FederationSettings, given, fault=HomeError)
    made = FederationHome.create(home.absolute(), settings, now=datetime.now(UTC))
    words = spoken(made.fingerprint)
    show(
        {"home": str(home), "name": name, "fingerprint": made.fingerprint.hex(), "words": words},
        (
            f"The federation {name} was made; its folder is {home}.",
            "Its words, which hospitals compare with you by telephone:",
            f"  {words}",
            "Keep ca.key offline once the certificate is made: only `pate-fed renew` needs it.",
            "Next: pate-fed serve, pate-fed invite NAME",
        ),
    )


def schema() -> None:
    """Print the JSON schema of a federation's settings file, with the meaning of every key."""
    from coordinator.federation.home import SCHEMA_VERSION, FederationSettings  # noqa: PLC0415 - keeps --help fast

    print_json(schema_of(FederationSettings, version=SCHEMA_VERSION))


def _database_to_keep(option: str) -> str:
    """Return the URL for the federation's file: never one with a password."""
    from coordinator.federation.home import (  # noqa: PLC0415 - keeps --help fast
        DATABASE_VARIABLE,
        has_password,
        without_password,
    )

    if option and has_password(option):
        raise InvalidSettingError(
            f"--database must have no password, which every user of this machine could read: "
            f"set {DATABASE_VARIABLE} instead",
        )
    given = os.environ.get(DATABASE_VARIABLE, "")
    kept = option or given
    if kept and not kept.startswith("postgresql"):
        raise InvalidSettingError(
            "a database of its own must be PostgreSQL: without one the folder has SQLite"
        )
    return without_password(kept) if kept else ""


def invite(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The hospital.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Invitation to write. [default: NAME.invite.json]"),
    ] = None,
    days: Annotated[float, typer.Option(help="Lifetime in days; above 0, at most 30.")] = 7.0,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Make a one-time invitation for a hospital, as a file."""
    if not 0 < days <= 30:  # also false for values that are no number
        raise InvalidSettingError("--days must be above 0, and 30 at most", days)
    coordinator = open_coordinator(home)
    target = out or Path(f"{party.replace(' ', '-')}.invite.json")
    # A new invitation ends an open one, so check first that the file can be written.
    require_new_invitation(target)
    replaced = _invited(coordinator, party)
    invitation = coordinator.invite(party, lifetime=timedelta(days=days))
    write_new(target, [invitation.to_json()], fault=InvalidSettingError)
    words = spoken(invitation.fingerprint)
    lines = [
        f"{target} invites {invitation.party}, once, for {days:g} days.",
        "Keep this file secret until it has been used.",
        "When they join, they telephone you. Read these words aloud; they compare:",
        f"  {words}",
    ]
    if replaced is not None:
        lines.append(
            f"The invitation that was made on {_day(replaced.made_at)} and was not used is good no "
            "more: if the hospital has its file, send this one."
        )
    show(
        {
            "file": str(target),
            "party": invitation.party,
            "replaces": None if replaced is None else _at(replaced.made_at),
            "words": words,
            "expires_at": invitation.expires_at,
        },
        lines,
    )


def members(home: HomeOption = DEFAULT_HOME) -> None:
    """Show all hospitals with states and words, then all invitations."""
    coordinator = open_coordinator(home)
    found, invitations = coordinator.enrollment.parties(), coordinator.enrollment.invitations()
    words = spoken(coordinator.home.fingerprint)
    show(
        {
            "words": words,
            "members": [_table(one) for one in found],
            "invitations": [_table_of_invitation(one) for one in invitations],
        },
        (
            f"{coordinator.home.settings.name}: {words}",
            *(line for one in found for line in _lines(one)),
            *([] if found else ["No hospital has asked to join yet."]),
            *(["Invitations:"] if invitations else []),
            *(_line_of_invitation(one) for one in invitations),
        ),
    )


def approve(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The hospital.")],
    words: Annotated[
        str, typer.Option(help="The twelve words its people read to you by telephone.")
    ],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Make a hospital a member after comparing its words by telephone."""
    approved = open_coordinator(home).approve(party, words=words)
    inside = (
        "its node is let in."
        if approved.node_id is not None
        else "its node is let in once `pate-fed serve` runs."
    )
    show(_table(approved), [f"{party} is a member; {inside}"])


def revoke(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The hospital.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Expel a hospital, or reject its request; its identity can never return.

    For a hospital that has not asked yet, this withdraws the invitation.
    """
    revoked = open_coordinator(home).revoke(party)
    if revoked is not None:
        show(_table(revoked), [f"{party} is out."])
    else:
        said = f"The invitation of {party} is withdrawn."
        show({"name": party, "state": "withdrawn"}, [said])


def suspend(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The hospital.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Ask a hospital nothing until `pate-fed reinstate`; runs that need it wait."""
    from coordinator import operator  # noqa: PLC0415 - keeps --help fast

    suspended = operator.suspend(open_coordinator(home), party)
    show(_table(suspended), [f"{party} is suspended: it is asked nothing."])


def reinstate(
    party: Annotated[str, typer.Argument(metavar="NAME", help="The hospital.")],
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Let a suspended hospital take part again."""
    from coordinator import operator  # noqa: PLC0415 - keeps --help fast

    reinstated = operator.reinstate(open_coordinator(home), party)
    show(_table(reinstated), [f"{party} is asked again."])


def renew(home: HomeOption = DEFAULT_HOME) -> None:
    """Issue a new server certificate; hospitals need not change anything."""
    from coordinator.certificates import days_left  # noqa: PLC0415 - keeps --help fast
    from coordinator.federation.home import FederationHome  # noqa: PLC0415

    opened = FederationHome.open(home.absolute())
    opened.renew_server_certificate(now=datetime.now(UTC))
    days = int(days_left(opened.server_certificate, now=datetime.now(UTC)))
    said = f"The certificate is good for {days} days. Restart `pate-fed serve` to show it."
    show({"days": days}, [said])


def upgrade(home: HomeOption = DEFAULT_HOME) -> None:
    """Upgrade an older version's database; to go back, restore a backup.

    `pate-fed serve` does the same when it starts, and then continues open runs.
    """
    from coordinator.operator import Coordinator  # noqa: PLC0415 - keeps --help fast

    Coordinator.open(home, upgrades=True).close()
    show({"home": str(home)}, ["The database is up to date."])


def _table(party: EnrolledParty) -> dict[str, object]:
    return {
        "name": party.name,
        "state": party.state,
        "fingerprint": party.identity.fingerprint.hex(),
        "words": spoken(party.identity.fingerprint),
        "votes": party.votes,
        "is_let_in": party.node_id is not None,
        "requested_at": _at(party.requested_at),
    }


def _invited(coordinator: Coordinator, party: str) -> MadeInvitation | None:
    found = (
        one
        for one in coordinator.enrollment.invitations()
        if one.party == normalized(party) and one.is_open(now=datetime.now(UTC))
    )
    return next(found, None)


def _table_of_invitation(one: MadeInvitation) -> dict[str, object]:
    return {
        "name": one.party,
        "made_at": _at(one.made_at),
        "expires_at": _at(one.expires_at),
        "used_at": None if one.used_at is None else _at(one.used_at),
        "is_open": one.is_open(now=datetime.now(UTC)),
    }


def _line_of_invitation(one: MadeInvitation) -> str:
    made = f"{one.party:24} made {_day(one.made_at)}, "
    if one.used_at is not None:
        return f"{made}used {_day(one.used_at)}"
    if one.is_open(now=datetime.now(UTC)):
        return f"{made}not used yet, good until {_day(one.expires_at)}"
    return f"{made}never used, good for nothing since {_day(one.expires_at)}"


def _at(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _lines(party: EnrolledParty) -> tuple[str, str]:
    votes = f", {plural(party.votes, 'vote')}" if party.votes else ""
    return (
        f"{party.name:24} {party.state}{votes}",
        f"{'':24} {spoken(party.identity.fingerprint)}",
    )
