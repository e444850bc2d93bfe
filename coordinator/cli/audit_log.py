"""The operator's audit log at the command line: `audit-log list`, `export`, `verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.console import (
    DEFAULT_HOME,
    FormatOption,
    HomeOption,
    open_coordinator,
    show,
    write_secret,
)
from coordinator.errors import UsageError
from pate_fed.errors import InvalidSettingError
from pate_fed.nodes import Format
from pate_fed.nodes.command_line import print_json, read_head
from pate_fed.nodes.forwarding import as_line

if TYPE_CHECKING:
    from coordinator.database import AuditEntry, Fact

audit_log_app = typer.Typer(
    help="The log of the operator's acts.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    suggest_commands=False,
)


@audit_log_app.callback()
def audit_log() -> None:
    """The log of the operator's acts."""


@audit_log_app.command("list")
def list_entries(
    last: Annotated[int, typer.Option(metavar="N", help="Newest entries to show.")] = 20,
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Show the newest acts: who did what, when, from where, before and after."""
    if last < 1:
        raise InvalidSettingError("--last must be at least 1", last)
    log = open_coordinator(home).audit_log
    count, _ = log.end
    found = list(log.entries(first=max(1, count - last + 1)))
    if output_format is Format.JSON:
        print_json({"entries": count, "shown": [one.table(link) for one, link in found]})
        return
    show(*(line for one, _ in found for line in _lines(one)))
    if not found:
        show("Nobody has done anything yet.")


@audit_log_app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="FILE", help="New file, one JSON object a line.")],
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Check the chain, then write all entries to a new file. It holds names: keep it private."""
    log = open_coordinator(home).audit_log
    count = log.verify()
    write_secret(out, (f"{as_line(table)}\n" for table in log.tables()))
    if output_format is Format.JSON:
        print_json({"file": str(out), "entries": count})
        return
    show(f"{out} has {count} entries.")


@audit_log_app.command()
def verify(
    head: Annotated[
        list[str] | None,
        typer.Option(metavar="COUNT:HEX", help="A head that was printed before; repeatable."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Check that no entry was changed, moved or removed; print the head of the log.

    Write the head down elsewhere. Only `--head` reveals entries that were cut from the end, a log
    that was written anew, or a restored backup.
    """
    kept = [read_head(text, usage=UsageError) for text in head or []]
    log = open_coordinator(home).audit_log
    count, link = log.end
    log.verify(heads=[*kept, (count, link)])
    if output_format is Format.JSON:
        print_json({"entries": count, "head": link.hex(), "compared": len(kept)})
        return
    show(
        f"{count} entries, each bound to those before it: none was changed.",
        f"Head        {count}:{link.hex()}",
        f"Compared with {len(kept)} kept head(s)."
        if kept
        else "Compared with no kept head: a cut end would not show. Keep this head elsewhere.",
    )


def _lines(one: AuditEntry) -> Iterator[str]:
    yield (
        f"{one.number:6}  {_at(one):%Y-%m-%d %H:%M:%S} UTC  {one.act.value}: {one.subject}; "
        f"by {one.actor.name}, {one.actor.origin}"
    )
    for name, facts in (("before", one.before), ("after", one.after)):
        if facts:
            yield f"{'':8}{name}: {_facts(facts)}"


def _facts(facts: Mapping[str, Fact]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _at(one: AuditEntry) -> datetime:
    return datetime.fromtimestamp(one.at / 1000, UTC)
