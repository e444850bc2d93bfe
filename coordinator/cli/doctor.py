"""`doctor`: the faults that keep the service from serving."""

from __future__ import annotations

import typer

from coordinator.cli.console import DEFAULT_HOME, FormatOption, HomeOption, show
from pate_fed.nodes import Format, exit_code, lines_of_checks, table_of_checks
from pate_fed.nodes.command_line import print_json


def doctor(home: HomeOption = DEFAULT_HOME, output_format: FormatOption = Format.TEXT) -> None:
    """Check the service for problems; changes nothing, works with or without the service.

    Exit codes: 0 good, 1 warnings only, 4 failures.
    """
    from coordinator.doctor import Surroundings, examine  # noqa: PLC0415 - keeps --help fast

    found = list(examine(home.absolute(), Surroundings()))
    if output_format is Format.JSON:
        print_json(table_of_checks(found))
    else:
        show(*lines_of_checks(found))
    raise typer.Exit(exit_code(found))
