"""The hospital's own table, at the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from party.cli.console import DEFAULT_SITE, FormatOption, SiteOption, open_site, show
from pate_fed.nodes import Format

data_app = typer.Typer(
    help="The hospital's own table.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,
)


@data_app.callback()
def data() -> None:
    """The hospital's own table."""


@data_app.command("add")
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV file with a header.")],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict.")],
    patient_id: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of patient ids; without it each row is a patient."
        ),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Register the teachers' table. Nothing of it leaves this machine."""
    from party.site import dataset  # noqa: PLC0415 - keeps --help fast

    _, summary = dataset.add(open_site(site), file, label=label, patient_id=patient_id)
    hidden = f"fewer than {summary.floor}, or hidden beside such a count"
    show(
        output_format,
        {
            "file": str(summary.file),
            "sha256": summary.digest,
            "rows": summary.rows,
            "patients": summary.patients,
            "columns": [{"name": one.name, "role": one.role} for one in summary.columns],
            "classes": dict(summary.classes),
            "floor": summary.floor,
            "notes": list(summary.notes),
        },
        (
            f"{summary.file}: {summary.rows} rows of {summary.patients} patients.",
            *(f"  {one.name:24} {one.role}" for one in summary.columns),
            "Rows of each class:",
            *(
                f"  {name:24} {hidden if count is None else count}"
                for name, count in summary.classes
            ),
            f"SHA-256 {summary.digest}",
            *(f"Note: {note}" for note in summary.notes),
            "Registered. Nothing of it left this machine.",
        ),
    )
