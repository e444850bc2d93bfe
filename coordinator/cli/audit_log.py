"""The operator's audit log at the command line: `audit-log list`, `export`, `verify`."""

from __future__ import annotations

from coordinator.cli.terminal import DEFAULT_HOME, HomeOption, open_coordinator
from coordinator.errors import UsageError
from pate_fed.nodes.audit_commands import (
    HeadOption,
    LastOption,
    OutOption,
    export_all,
    read_heads,
    show_newest,
    show_verified,
)
from pate_fed.nodes.command_line import Commands

audit_log_app = Commands("The log of the operator's acts.")


@audit_log_app.command("list")
def list_entries(last: LastOption = 20, home: HomeOption = DEFAULT_HOME) -> None:
    """Show the newest acts: who did what, when, from where, before and after."""
    show_newest(open_coordinator(home).audit_log, last)


@audit_log_app.command()
def export(out: OutOption, home: HomeOption = DEFAULT_HOME) -> None:
    """Check the chain, then write all entries to a new file. It holds names: keep it private."""
    log = open_coordinator(home).audit_log
    log.verify()
    export_all(log, out, fault=UsageError)


@audit_log_app.command()
def verify(head: HeadOption = None, home: HomeOption = DEFAULT_HOME) -> None:
    """Check that no entry was changed, moved or removed; print the head of the log.

    Write the head down elsewhere. Only `--head` reveals entries that were cut from the end, a log
    that was written anew, or a restored backup.
    """
    kept = read_heads(head, fault=UsageError)
    compared = (
        f"Compared with {len(kept)} kept head(s)."
        if kept
        else "Compared with no kept head: a cut end would not show. Keep this head elsewhere."
    )
    log = open_coordinator(home).audit_log
    show_verified(log, kept, more={"compared": len(kept)}, said=[compared])
