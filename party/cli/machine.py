"""The machine at the command line: doctor and service."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from party.cli.systemd import DEFAULT_UNIT, ServiceUnit
from party.cli.terminal import DEFAULT_SITE, SiteOption
from party.owner import open_site
from party.site.site import SETTINGS_FILE, Site
from pate_fed.nodes import lines_of_checks, table_of_checks
from pate_fed.nodes.command_line import Commands, show
from pate_fed.nodes.notices import show_test

service_app = Commands("The node as a systemd service of this machine.")
notify_app = Commands("Messages to this hospital's people, by mail or to a webhook.")


def doctor(site: SiteOption = DEFAULT_SITE) -> None:
    """Check this hospital's node for problems.

    Exit codes: 0 good, 1 warnings only, 4 failures.
    """
    raise typer.Exit(show_examination(open_site(site)))


def show_examination(opened: Site) -> int:
    """Show the doctor's findings, and return the exit code."""
    from party import doctor as checks  # noqa: PLC0415 - keeps --help fast

    found = list(checks.examine(opened, checks.PartyProbes()))
    several = len(opened.memberships) > 1
    show(table_of_checks(found), lines_of_checks(found, with_federations=several))
    return checks.exit_code(found)


@notify_app.command("test")
def try_now(site: SiteOption = DEFAULT_SITE) -> None:
    """Send a test message to each target of `[notify]`, and say what happened."""
    opened = open_site(site)
    show_test(opened.settings.notify, opened.folder, node=opened.settings.party, file=SETTINGS_FILE)


@service_app.command()
def install(
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who runs it, never root. [default: you]")
    ] = None,
    unit: Annotated[Path, typer.Option(metavar="FILE", help="Unit file to write.")] = DEFAULT_UNIT,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the unit, write nothing.")
    ] = False,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Write a hardened systemd unit that runs this hospital's node."""
    opened = open_site(site)
    made = ServiceUnit(Path(sys.executable), opened.folder, user or getpass.getuser())
    if print_only:
        show({"unit": made.text}, made.text.splitlines())
        return
    made.require_user()
    made.install(unit)
    show(
        {"written": str(unit)},
        (
            f"{unit} is written. Start it now and at every boot:",
            f"  systemctl daemon-reload && systemctl enable --now {unit.name}",
        ),
    )
