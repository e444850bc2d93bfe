"""The hospital's own table, at the command line."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from party.cli.terminal import DEFAULT_SITE, ByOption, SiteOption, decider
from party.owner import open_records, open_site, opened_records
from party.site.site import DATABASE_FILE, Site
from pate_fed.errors import InvalidParameterError
from pate_fed.nodes.command_line import Commands, show
from pate_fed.regular_files import read_regular
from pate_fed.wording import plural

if TYPE_CHECKING:
    from pate_fed.data.reading import Reading

NameOption = Annotated[
    str,
    typer.Option(
        "--name",
        help="Data set that a task asks for by this name; without it the one that most do.",
    ),
]

data_app = Commands("The hospital's own table.")


@data_app.command("add")
def add(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV file with a header; or images: a folder with a folder for each class, a .npz "
            "archive, or a CSV file with a column path.",
        ),
    ],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict.")],
    patient_id: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Column of patient ids; without it each row is a patient."
        ),
    ] = None,
    *,
    name: NameOption = "",
    separator: Annotated[str, typer.Option(metavar="CHARACTER", help="CSV: between cells.")] = ",",
    decimal: Annotated[
        str,
        typer.Option(
            click_type=click.Choice((".", ",")), help="CSV: before the decimals of numbers."
        ),
    ] = ".",
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Register the teachers' table. Nothing of it leaves this machine."""
    from pate_fed.data.reading import Reading  # noqa: PLC0415 - keeps --help fast

    reading = Reading(separator=separator, decimal=decimal)
    register(file, label, patient_id, site=site, name=name, reading=reading)


def register(
    file: Path,
    label: str,
    patient_id: str | None,
    *,
    site: Path,
    name: str = "",
    reading: Reading | None = None,
) -> None:
    """Register a table as the data set of a name, and show it."""
    from party.site import own_table  # noqa: PLC0415 - keeps --help fast
    from party.site.training import of_another_table  # noqa: PLC0415 - the same
    from party.storage import has_node  # noqa: PLC0415 - the same
    from pate_fed.data.reading import Reading  # noqa: PLC0415 - the same

    changed, summary = own_table.add(
        finished(open_site(site)).using(name),
        file,
        label=label,
        patient_id=patient_id,
        reading=reading or Reading(),
    )
    with opened_records(changed) as opened:
        opened.decisions.state.note_table(summary.sha256, by=decider(None))
    refused, is_running = of_another_table(changed), has_node(changed.path(DATABASE_FILE))
    are_images = summary.kind == "image"
    things, counted = ("images", "Patients") if are_images else ("rows", "Rows")
    hidden = f"fewer than {summary.floor}, or hidden beside such a count"
    show(
        {
            **asdict(summary),
            "file": str(summary.file),
            "teachers": changed.settings.teachers,
            "classes": dict(summary.classes),
            "refused_teachers": list(refused),
            "node_runs": is_running,
        },
        (
            f"{summary.file}: {summary.rows} {things} of {summary.patients} patients.",
            f"{_voters(changed)}: all hospitals and the operator see this number.",
            *(f"  {one.name:24} {one.role}" for one in summary.columns),
            f"{counted} of each class:",
            *(
                f"  {name:24} {hidden if count is None else count}"
                for name, count in summary.classes
            ),
            f"SHA-256 {summary.sha256}",
            *(f"Note: {note}" for note in summary.notes),
            "Registered. Nothing of it left this machine.",
            *(
                ("The node that runs uses it from now on; it needs no restart.",)
                if is_running
                else ()
            ),
            *(_refused_lines(changed, refused) if refused else ()),
        ),
    )


def _voters(site: Site) -> str:
    settings = site.settings
    if settings.do_records_vote:
        return f"{plural(settings.teachers, 'patient')} may vote"
    return f"{plural(settings.teachers, 'teacher')}, each with one vote"


def _refused_lines(site: Site, refused: Sequence[str]) -> tuple[str, ...]:
    return (
        f"Teachers of {plural(len(refused), 'task')} learned from another table: this hospital",
        "does not answer with them any more (PF-346), and runs on these tasks wait. Register the",
        "earlier table again; or delete these folders and approve again, which trains new",
        "teachers. Queries that were answered stay answered and charged.",
        *(f"  {site.path('teachers', name)}" for name in refused),
    )


@data_app.command("remove")
def remove(
    patient: Annotated[
        str, typer.Option(metavar="ID", help="The patient, as the column of ids has it.")
    ],
    name: NameOption = "",
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Remove one patient from the table, and train anew the teachers that learned from them.

    All other teachers stay. Stop the node first. The audit log keeps the act without the id.
    """
    from party.site import erasure  # noqa: PLC0415 - keeps --help fast
    from party.storage import SiteAuditLog  # noqa: PLC0415 - the same
    from party.storage.site_audit_log import sign_head  # noqa: PLC0415 - the same

    who = decider(by)
    with open_records(site) as opened:
        changed, done = erasure.remove_patient(
            opened.site.using(name),
            patient,
            database=opened.database,
            is_run_open=lambda coordinators: _is_run_open(opened.site, coordinators),
            by=who,
            clock=time.time,
            random_bytes=secrets.token_bytes,
        )
        count, link = SiteAuditLog(opened.database).end
    signed = sign_head(count, link, changed.identity).hex() if changed.has_keys else ""
    show(
        {
            **asdict(done),
            "head": link.hex(),
            "signed": signed,
            "not_recalled": list(erasure.NOT_RECALLED),
        },
        (
            f"Removed: {done.rows} row(s) of this patient.",
            f"Trained anew: {done.teachers} teacher(s). Unchanged: {done.kept_teachers}.",
            f"SHA-256 {done.sha256}",
            f"Head        {count}:{link.hex()}",
            "This cannot be recalled:",
            *(f"  - {one}" for one in erasure.NOT_RECALLED),
        ),
    )


@data_app.command("tags")
def tags(
    key_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Secret of the hospitals, 32 to 128 hex digits; not for operators."
        ),
    ],
    name: Annotated[str, typer.Option(help="This hospital's name, for the auditor.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="New file for the tags.")],
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Write keyed hashes of each teacher's patients, for an audit of overlaps between hospitals.

    `pate-fed audit --tags` compares them with those of other hospitals.
    """
    import json  # noqa: PLC0415 - keeps --help fast

    from party.site.patient_tags import patient_tags  # noqa: PLC0415 - the same
    from pate_fed.nodes import write_file  # noqa: PLC0415 - the same

    try:
        key = bytes.fromhex(read_regular(key_file).decode("ascii").strip()[:129])
    except (OSError, ValueError) as error:
        raise InvalidParameterError(
            "--key-file must hold hex digits", type(error).__name__
        ) from error
    if out.exists():
        raise InvalidParameterError("--out must be a new file", str(out))
    from party.storage.site_audit_log import SiteAct  # noqa: PLC0415 - keeps --help fast

    joined = finished(open_site(site))
    found = patient_tags(joined, name=name, key=key)
    with opened_records(joined) as opened:
        what = {"what": "patient tags", "to": str(out)}
        opened.decisions.state.note_taken(SiteAct.EXPORTED, what, by=decider(None))
    write_file(out, (json.dumps(found, indent=2) + "\n").encode())
    teachers = sum(len(one) for one in found["tasks"].values())
    show(
        {"file": str(out), "tasks": len(found["tasks"]), "teachers": teachers},
        (
            f"{out}: tags of {teachers} teacher(s).",
            "Give it to the auditor, without the key. Somebody with both can find your patients.",
        ),
    )


def finished(site: Site) -> Site:
    """Return the site after an interrupted removal was completed or undone."""
    from party.site import erasure  # noqa: PLC0415 - keeps --help fast

    if not erasure.is_pending(site):
        return site
    with opened_records(site) as opened:
        return erasure.finish(site, opened.database)


def _is_run_open(site: Site, coordinators: frozenset[bytes]) -> bool:
    """Ask coordinators whether a run of theirs is open; one that is silent may have one."""
    from party.errors import JoinError  # noqa: PLC0415 - keeps --help fast
    from party.site.joining import ask_membership  # noqa: PLC0415 - the same

    for one in site.current:
        if one.coordinator.fingerprint in coordinators:
            try:
                if ask_membership(one).open_runs:
                    return True
            except JoinError:
                return True
    return False
