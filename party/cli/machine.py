"""The machine at the command line: doctor and service."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from party.cli.console import DEFAULT_SITE, FormatOption, SiteOption, show
from party.cli.systemd import DEFAULT_UNIT, ServiceUnit
from party.owner import open_site
from party.site.folder import Site
from pate_fed.nodes import Format, lines_of_checks, table_of_checks

service_app = typer.Typer(
    help="The node as a systemd service of this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # Click suggests them, too
)


def doctor(site: SiteOption = DEFAULT_SITE, output_format: FormatOption = Format.TEXT) -> None:
    """Check this hospital's node for problems.

    Exit codes: 0 good, 1 warnings only, 4 failures.
    """
    raise typer.Exit(show_examination(open_site(site), output_format))


def show_examination(opened: Site, output_format: Format) -> int:
    """Show the doctor's findings, and return the exit code."""
    from party import doctor as checks  # noqa: PLC0415 - keeps --help fast

    found = list(checks.examine(opened, checks.Surroundings()))
    several = len(opened.memberships) > 1
    show(output_format, table_of_checks(found), lines_of_checks(found, with_federations=several))
    return checks.exit_code(found)


@service_app.callback()
def service() -> None:
    """The node as a systemd service of this machine."""


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
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Write a hardened systemd unit that runs this hospital's node."""
    opened = open_site(site)
    made = ServiceUnit(Path(sys.executable), opened.folder, user or getpass.getuser())
    if print_only:
        show(output_format, {"unit": made.text}, made.text.splitlines())
        return
    made.require_user()
    made.install(unit)
    show(
        output_format,
        {"written": str(unit)},
        (
            f"{unit} is written. Start it now and at every boot:",
            f"  systemctl daemon-reload && systemctl enable --now {unit.name}",
        ),
    )
