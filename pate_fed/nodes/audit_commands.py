"""A node's audit log at its command line: `list`, `export`, `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pate_fed.nodes.command_line import show
from pate_fed.nodes.forwarding import as_line
from pate_fed.nodes.owner_files import write_new

if TYPE_CHECKING:
    from pate_fed.nodes.audit_log import AuditLog

LastOption = Annotated[int, typer.Option(metavar="N", min=1, help="Newest entries to show.")]
OutOption = Annotated[Path, typer.Option(metavar="FILE", help="New file, one JSON object a line.")]
HeadOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COUNT:HEX", help="A head that was printed before; repeatable."),
]


def show_newest(log: AuditLog, last: int) -> None:
    """Show the newest entries, oldest first: who did what, when, from where, before and after."""
    count, _ = log.end
    found = list(log.tables(first=max(1, count - last + 1)))
    lines = [line for one in found for line in _lines(one)]
    show({"entries": count, "shown": found}, lines or ["Nothing is on record yet."])


def export_all(log: AuditLog, out: Path, *, fault: type[Exception]) -> None:
    """Write all entries of a checked log to a new file; raise a `fault` if there can be none."""
    count, _ = log.end
    write_new(out, (f"{as_line(table)}\n" for table in log.tables()), fault=fault)
    show({"file": str(out), "entries": count}, (f"{out} has {count} entries.",))


def show_verified(
    log: AuditLog,
    heads: Iterable[tuple[int, bytes]],
    *,
    more: Mapping[str, Any],
    said: Iterable[str],
) -> None:
    """Check that no entry was changed, moved or removed; show the head of the log.

    The log must go on from the heads. `more` and `said` are more of the result, for programs
    and for people.
    """
    count, link = log.end
    log.verify(heads=[*heads, (count, link)])
    show(
        {"entries": count, "head": link.hex(), **more},
        (
            f"{count} entries, each bound to those before it: none was changed.",
            f"Head        {count}:{link.hex()}",
            *said,
        ),
    )


def read_heads(texts: Iterable[str] | None, *, fault: type[Exception]) -> list[tuple[int, bytes]]:
    """Return counts and links of heads, as `verify` printed them; raise a `fault` at others."""
    found = []
    for text in texts or ():
        count, _, digits = text.partition(":")
        try:
            found.append((int(count), bytes.fromhex(digits)))
        except ValueError:
            raise fault("a head must be COUNT:HEX, as it was printed", "another text") from None
    return found


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    from pate_fed.nodes.audit_log import said_of  # noqa: PLC0415 - keeps --help fast

    at, who, facts = said_of(table)
    subject = f": {table['subject']}" if table["subject"] else ""
    yield f"{table['number']:6}  {at}  {table['act']}{subject}; by {who}"
    yield from (f"{'':8}{fact}" for fact in facts)
