"""The hospital's own table, at the command line."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
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
    from party.site.own_table import DatasetSummary
    from pate_fed.data.reading import Reading

NameOption = Annotated[
    str,
    typer.Option(
        "--name",
        help="Data set that a task asks for by this name; without it the one that most do.",
    ),
]
_File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="CSV or Parquet file, or a folder with the files of one table; or images: a folder "
        "with a folder for each class, a .npz archive, or a CSV file with a column path.",
    ),
]
_Label = Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict.")]
_Patient = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of patient ids; without it each row is a patient."),
]
_Separator = Annotated[str, typer.Option(metavar="CHARACTER", help="CSV: between cells.")]
_Decimal = Annotated[
    str,
    typer.Option(click_type=click.Choice((".", ",")), help="CSV: before the decimals of numbers."),
]
_Missing = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[COLUMN=]VALUE",
        help="Cell that stands for “not known”, beside the usual ones; repeatable.",
    ),
]
_Map = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OLD=NEW",
        help="The task's name for a column or a class, or (COLUMN:OLD=NEW) for a category; "
        "repeatable.",
    ),
]
_Ignore = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Column to leave out; repeatable.")
]
_IgnoreFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with columns to leave out, one name a line."),
]
_Drop = Annotated[bool, typer.Option("--drop-unlabeled", help="Leave out rows without a label.")]

data_app = Commands("The hospital's own table or images.")


@data_app.command("add")
def add(
    file: _File,
    label: _Label,
    patient_id: _Patient = None,
    *,
    name: NameOption = "",
    separator: _Separator = ",",
    decimal: _Decimal = ".",
    missing: _Missing = None,
    map: _Map = None,  # noqa: A002 - its option
    ignore: _Ignore = None,
    ignore_file: _IgnoreFile = None,
    drop_unlabeled: _Drop = False,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Register the teachers' table or images. Nothing of it leaves this machine."""
    reading = _reading(
        separator=separator,
        decimal=decimal,
        missing=missing,
        renamed=map,
        ignored=ignore,
        ignore_file=ignore_file,
        drops_unlabeled=drop_unlabeled,
    )
    register(file, label, patient_id, site=site, name=name, reading=reading)


@data_app.command("check")
def check(
    file: _File,
    label: _Label,
    patient_id: _Patient = None,
    *,
    separator: _Separator = ",",
    decimal: _Decimal = ".",
    missing: _Missing = None,
    map: _Map = None,  # noqa: A002 - its option
    ignore: _Ignore = None,
    ignore_file: _IgnoreFile = None,
    drop_unlabeled: _Drop = False,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Show a table or images as `add` does, and store nothing; no site is needed."""
    from party.site import own_table  # noqa: PLC0415 - keeps --help fast
    from party.site.site import SETTINGS_FILE, DataSettings  # noqa: PLC0415 - the same

    reading = _reading(
        separator=separator,
        decimal=decimal,
        missing=missing,
        renamed=map,
        ignored=ignore,
        ignore_file=ignore_file,
        drops_unlabeled=drop_unlabeled,
    )
    is_there = (site / SETTINGS_FILE).exists()
    floor = open_site(site).settings.data.floor if is_there else DataSettings().floor
    summary = own_table.examine(
        file, label=label, patient_id=patient_id, floor=floor, reading=reading
    )
    show(
        _plain(summary),
        (
            *(f"Question: {one}" for one in summary.asked),
            *_lines(summary),
            "Nothing was stored. `pate-party data add` with the same options registers it.",
        ),
    )


def _reading(
    *,
    separator: str,
    decimal: str,
    missing: Sequence[str] | None,
    renamed: Sequence[str] | None,
    ignored: Sequence[str] | None,
    ignore_file: Path | None,
    drops_unlabeled: bool,
) -> Reading:
    from pate_fed.data.reading import Reading, names_in  # noqa: PLC0415 - keeps --help fast

    listed = () if ignore_file is None else names_in(ignore_file)
    return Reading(
        separator=separator,
        decimal=decimal,
        missing=tuple(missing or ()),
        renamed=tuple(renamed or ()),
        ignored=tuple(dict.fromkeys((*(ignored or ()), *listed))),
        drops_unlabeled=drops_unlabeled,
    )


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
    from pate_fed.data.reading import USUAL  # noqa: PLC0415 - the same

    changed, summary = own_table.add(
        finished(open_site(site)).using(name),
        file,
        label=label,
        patient_id=patient_id,
        reading=reading or USUAL,
    )
    with opened_records(changed) as opened:
        opened.decisions.state.note_table(summary.sha256, by=decider(None), data_set=name)
    refused, is_running = of_another_table(changed), has_node(changed.path(DATABASE_FILE))
    show(
        {
            **_plain(summary),
            "teachers": changed.settings.teachers,
            "refused_teachers": list(refused),
            "node_runs": is_running,
        },
        (
            *(f"Question: {one}" for one in summary.asked),
            *_lines(summary),
            f"{_voters(changed)}: all hospitals and the operator see this number.",
            "Registered. Nothing of it left this machine.",
            *(
                ("The node that runs uses it from now on; it needs no restart.",)
                if is_running
                else ()
            ),
            *(_refused_lines(changed, refused) if refused else ()),
        ),
    )


def _plain(summary: DatasetSummary) -> dict[str, object]:
    return {**asdict(summary), "file": str(summary.file), "classes": dict(summary.classes)}


def _lines(summary: DatasetSummary) -> Iterator[str]:
    things = "images" if summary.kind == "image" else "rows"
    yield f"{summary.file}: {summary.rows} {things} of {summary.patients} patients."
    for one in summary.columns:
        yield f"  {one.name:24} {one.role}{f' ({one.doubt})' if one.doubt else ''}"
    yield "Patients of each class:"
    hidden = f"fewer than {summary.floor}, or hidden beside such a count"
    for name, count in summary.classes:
        yield f"  {name:24} {hidden if count is None else count}"
    yield f"SHA-256 {summary.sha256}"
    yield from (f"Note: {note}" for note in summary.notes)


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
        str,
        typer.Option(
            metavar="ID", help="The patient, as the column of ids or the folders have it."
        ),
    ],
    name: NameOption = "",
    by: ByOption = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Remove one patient from the records, and train anew the teachers that learned from them.

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
    things = "image" if changed.data.kind == "image" else "row"
    signed = sign_head(count, link, changed.identity).hex() if changed.has_keys else ""
    show(
        {
            **asdict(done),
            "head": link.hex(),
            "signed": signed,
            "not_recalled": list(erasure.NOT_RECALLED),
        },
        (
            f"Removed: {plural(done.rows, things)} of this patient.",
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
