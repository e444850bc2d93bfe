"""This hospital's audit log at the command line: list, export, verify."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from party.cli.console import DEFAULT_SITE, SiteOption, decider, tell
from party.errors import EnrollmentError, UsageError
from party.owner import open_records
from party.site.folder import Site
from pate_fed.nodes.command_line import Commands, read_head, show
from pate_fed.nodes.forwarding import as_line
from pate_fed.nodes.owner_files import OWNER_ONLY

audit_app = Commands("The log of this hospital's decisions and answers.")


@audit_app.command("list")
def list_records(
    last: Annotated[int, typer.Option(metavar="N", min=1, help="Newest records to show.")] = 20,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Show the newest records: who did what, when, from where, before and after."""
    with open_records(site) as opened:
        count, _ = opened.log.end
        found = list(opened.log.tables(first=max(1, count - last + 1)))
    show(
        {"records": count, "shown": found},
        [line for one in found for line in _lines(one)] or ["Nothing is on record yet."],
    )


@audit_app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="New file, one JSON object a line.")],
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Check the log, then write all records to a new file. It holds names: keep it private."""
    from party.storage.audit import AuditKind  # noqa: PLC0415 - keeps --help fast

    with open_records(site) as opened:
        opened.log.verify()
        if os.path.lexists(out):
            raise UsageError("--out must be a new file in an existing folder", "one that exists")
        what = {"what": "audit log", "to": str(out)}
        opened.records.standing.note_taken(AuditKind.EXPORTED, what, by=decider(None))
        count, _ = opened.log.end
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.writelines(f"{as_line(table)}\n" for table in opened.log.tables())
        except OSError as error:
            raise UsageError(
                "--out must be a new file in an existing folder", error.strerror
            ) from error
    show({"file": str(out), "records": count}, (f"{out} has {count} records.",))


@audit_app.command()
def verify(
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="COUNT:HEX", help="A head that was printed before; repeatable."),
    ] = None,
    site: SiteOption = DEFAULT_SITE,
) -> None:
    """Check that no record of the audit log was changed, moved or removed; print its head.

    This asks each coordinator for the newest head that it holds: a cut or rewritten log does not
    continue it. `--head` does the same for a head that you kept.
    """
    from party.storage.audit import sign_head  # noqa: PLC0415 - keeps --help fast

    kept = [read_head(text, usage=UsageError) for text in head or []]
    with open_records(site) as opened:
        witnessed = _witnessed(opened.site)
        count, link = opened.log.end
        opened.log.verify(heads=[*kept, *witnessed.values(), (count, link)])
    keys = opened.site.identity if opened.site.has_keys else None
    signed = "" if keys is None else sign_head(count, link, keys).hex()
    held = {one.name: witnessed.get(one.name) for one in opened.site.current}
    show(
        {
            "records": count,
            "head": link.hex(),
            "signed": signed,
            "witnessed": {name: None if one is None else one[0] for name, one in held.items()},
        },
        (
            f"{count} records, each bound to those before it: nothing was changed.",
            f"Head        {count}:{link.hex()}",
            *(
                f"Coordinator of {name} holds "
                f"{'no head: it was not compared' if one is None else f'of {one[0]} records'}"
                for name, one in held.items()
            ),
        ),
    )


def _witnessed(site: Site) -> dict[str, tuple[int, bytes]]:
    """Return the newest head that each coordinator holds of us, if it can be asked."""
    from party.site.enrollment import ask_membership  # noqa: PLC0415
    from protocols.enrollment import read_audit_head  # noqa: PLC0415 - keeps --help fast

    found: dict[str, tuple[int, bytes]] = {}
    for one in site.current if site.has_keys else ():
        try:
            frame = ask_membership(one).audit_head
        except EnrollmentError as error:
            tell(f"The coordinator of {one.name} was not asked: {error.code}")
            continue
        if frame:
            head = read_audit_head(frame, site.identity.public)
            found[one.name] = head.records, head.head
    return found


def _lines(one: dict[str, Any]) -> Iterator[str]:
    who = f"; by {one['by']}, {one['from']}" if one["by"] else ""
    yield f"{one['number']:6}  {one['at'][:19].replace('T', ' ')} UTC  {one['act']}{who}"
    for name in ("before", "after"):
        if one[name] != "":
            yield f"{'':8}{name}: {one[name]}"
    if one["facts"]:
        yield f"{'':8}{', '.join(f'{name} {value}' for name, value in one['facts'].items())}"
